// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "mica/core/dtype.hpp"

namespace mica::checkpoint {

/// A source of any range of any parameter, or of its optimizer state: a checkpoint or a Hugging Face folder.
class ParameterSource {
 public:
  virtual ~ParameterSource() = default;

  /// @param kind  "master" (the parameter itself), "exp_avg", ... False for state that does not exist.
  [[nodiscard]] virtual bool has(const std::string& parameter, const std::string& kind) const = 0;
  /// The dtype of elements from read(): f32, except for whole tensors of a checkpoint (ignored parameters, buffers).
  [[nodiscard]] virtual DType dtype(const std::string& parameter, const std::string& kind) const = 0;
  /// Elements [begin, begin + numel) of the row-major flattened parameter.
  struct Range {
    const std::string* parameter;
    std::int64_t begin, numel;
    void* data;  ///< [numel] elements of dtype()
  };
  /// @param ranges  must not overlap; ascending ranges are read fastest. One thread at a time. @throws CheckpointError.
  virtual void read(const std::string& kind, std::span<const Range> ranges) = 0;
  void read(const std::string& parameter, const std::string& kind, std::int64_t begin, std::int64_t numel, void* data) {
    const Range range{&parameter, begin, numel, data};
    read(kind, {&range, 1});
  }
  /// Data from read() is verified only when this has returned. @throws CheckpointError.
  virtual void finish() = 0;
  /// read() with conversion to f32; f64 and integers are rounded.
  void read_f32(const std::string& parameter, const std::string& kind, std::int64_t begin, std::int64_t numel, float* data);
};

/// Element i of an array as a number; integers past 2^53 are rounded.
[[nodiscard]] double element_value(DType dtype, const std::byte* data, std::int64_t i);

}  // namespace mica::checkpoint
