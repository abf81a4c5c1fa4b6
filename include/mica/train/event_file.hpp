// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "mica/train/appended_file.hpp"

namespace mica::train {

/// A scalar of TensorBoard: its tag and its value.
using TaggedValue = std::pair<std::string, double>;

/// An event file of TensorBoard, RUN/tensorboard/events.out.tfevents.SECONDS.HOST.PID: one for each launch. Rank 0 only.
/// Records are those of TensorFlow's TFRecord: length (8 bytes), its masked CRC-32C (4), a protobuf `Event`, its masked CRC-32C (4).
class EventFile {
 public:
  /// @param wall_time    Unix seconds
  /// @param first_step   of the launch: TensorBoard no longer shows what other files of the folder have for this step and later ones
  /// @param warn         as for AppendedFile. @throws ConfigError if it cannot be written
  EventFile(const std::string& run_folder, double wall_time, std::int64_t first_step, std::function<void(const std::string&)> warn);

  void write(double wall_time, std::int64_t step, const std::vector<TaggedValue>& values);

 private:
  AppendedFile file_;
};

/// A TFRecord of these bytes.
[[nodiscard]] std::string framed_record(const std::string& bytes);

}  // namespace mica::train
