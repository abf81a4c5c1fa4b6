// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "mica/data/dataset.hpp"
#include "mica/data/sampler.hpp"
#include "mica/tensor/tensor_view.hpp"

namespace mica::data {

/// One tensor of a micro-batch of B samples, in host memory.
struct BatchTensor {
  Shape shape;  ///< [B, SampleTensor::shape]
  DType dtype = DType::f32;
  std::vector<std::byte> bytes;

  [[nodiscard]] TensorView view() { return {bytes.data(), shape, dtype}; }
};

/// A micro-batch in host memory.
struct Batch {
  std::vector<BatchTensor> tensors;      ///< in the order of Dataset::tensors()
  std::vector<std::int64_t> global_ids;  ///< [B], SampledSequence::global_id, for nn::Context::sequences
};

/// Fills `batch` with the samples in order; its memory is reused. @throws what Dataset::read() throws: for tokens, ConfigError
/// for an id past the vocabulary.
void read_batch(const Dataset& dataset, std::span<const SampledSequence> samples, Batch& batch);

}  // namespace mica::data
