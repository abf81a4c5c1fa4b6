// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "mica/core/dtype.hpp"
#include "mica/tensor/shape.hpp"

namespace mica::data {

/// One tensor that every sample of a dataset has: its pixels, its class.
struct SampleTensor {
  std::string name;
  Shape shape;  ///< of one sample; Shape{}: a number
  DType dtype = DType::f32;

  [[nodiscard]] std::int64_t bytes() const { return shape.numel() * dtype_bytes(dtype); }
};

/// Samples that can be read in any order. Sampler and BatchPlan decide which ones a rank reads when, so every dataset is
/// sharded over ranks, shuffled and resumed in the same way. For data that do not fit in memory derive from it.
class Dataset {
 public:
  virtual ~Dataset() = default;

  [[nodiscard]] virtual std::int64_t num_samples() const = 0;  ///< at least 1
  /// In the order of the model's arguments: inputs, then targets. The same for every sample.
  [[nodiscard]] virtual const std::vector<SampleTensor>& tensors() const = 0;
  /// @param out  one for each of tensors(), of its bytes. Several threads may read at once.
  virtual void read(std::int64_t sample, std::span<const std::span<std::byte>> out) const = 0;
  /// A short text that depends on the data, not on where they are stored: to compare a run's data with its checkpoint's.
  [[nodiscard]] virtual std::string fingerprint() const = 0;
};

}  // namespace mica::data
