// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "mica/data/dataset.hpp"

namespace mica::data {

/// One tensor of all samples.
struct SampleArray {
  std::string name;
  Shape shape;  ///< of one sample; Shape{}: a number each
  /// [samples, shape], one sample after the other. i64 are kept as i32, which is how models take ids and classes.
  std::variant<std::vector<float>, std::vector<std::int32_t>, std::vector<std::int64_t>> values;
};

/// A user's own samples, in memory.
/// @code
///   data::TensorDataset digits({{"pixels", {64}, std::move(pixels)}, {"digit", {}, std::move(classes)}});
/// @endcode
class TensorDataset final : public Dataset {
 public:
  /// @throws ConfigError naming the array: no arrays or no samples, values that are not a whole number of samples, arrays of
  /// different numbers of samples, an i64 value that does not fit in i32.
  explicit TensorDataset(std::vector<SampleArray> arrays);

  [[nodiscard]] std::int64_t num_samples() const override { return num_samples_; }
  [[nodiscard]] const std::vector<SampleTensor>& tensors() const override { return tensors_; }
  void read(std::int64_t sample, std::span<const std::span<std::byte>> out) const override;
  [[nodiscard]] std::string fingerprint() const override;

 private:
  std::vector<SampleArray> arrays_;  // f32 and i32
  std::vector<SampleTensor> tensors_;
  std::int64_t num_samples_ = 0;
};

}  // namespace mica::data
