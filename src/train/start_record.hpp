// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace mica::train {

/// RUN/starts.json: the step from which the run was last started, and how often in a row. [Note: starts without progress] A job that is
/// requeued whenever it ends (status 75, a lost node) would be requeued forever if no start saves a later step: the time limit is shorter
/// than a start, a step and a save, or a node is broken. So the third start in a row from one step ends with status 3, after which scripts
/// do not requeue it. A start by hand after that counts from one again, and so does a start from another step (a new checkpoint, or an
/// earlier one) or with another config, and one after a run that was done. For rank 0 of the job that owns the folder.
class StartRecord {
 public:
  explicit StartRecord(const std::string& run_folder);

  /// Records a start. @param step  the last one done. @param config  the resolved one, as text
  /// @throws Error if two starts in a row got no further; IoError
  void begin(std::int64_t step, std::string_view config) const;
  /// Takes the last start back, if it can.
  void withdraw() const;
  /// The run is done: begins the count anew, if it can.
  void remove() const;

 private:
  std::string run_folder_, path_;
};

}  // namespace mica::train
