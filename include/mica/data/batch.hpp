// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "mica/data/dataset.hpp"
#include "mica/data/sampler.hpp"
#include "mica/tensor/tensor_view.hpp"

namespace mica::data {

/// One tensor of a micro-batch of B samples, in host memory.
class BatchTensor {
 public:
  /// For B = num_samples of `kind`; its bytes are undefined until they are written. Memory is reused.
  void resize(const SampleTensor& kind, std::int64_t num_samples);
  /// [B, SampleTensor::shape]
  [[nodiscard]] TensorView view() { return {bytes_.get(), shape_, dtype_}; }

 private:
  Shape shape_;
  DType dtype_ = DType::f32;
  std::unique_ptr<std::byte[]> bytes_;
  std::int64_t capacity_ = 0;  // of bytes_
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
