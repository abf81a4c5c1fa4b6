// SPDX-License-Identifier: Apache-2.0
#include "mica/data/batch.hpp"

#include <algorithm>
#include <array>

namespace mica::data {
namespace {

Shape batched(const Shape& shape, std::int64_t num_samples) {
  invariant(shape.num_dims() < Shape::kMaxDims, "a sample has a dim less than a tensor may have");
  std::array<std::int64_t, Shape::kMaxDims> dims{num_samples};
  std::ranges::copy(shape.dims(), dims.begin() + 1);
  return Shape(std::span<const std::int64_t>(dims.data(), shape.num_dims() + 1));
}

}  // namespace

void BatchTensor::resize(const SampleTensor& kind, std::int64_t num_samples) {
  const std::int64_t bytes = num_samples * kind.bytes();
  if (bytes > capacity_) {
    bytes_ = std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(bytes));
    capacity_ = bytes;
  }
  shape_ = batched(kind.shape, num_samples);
  dtype_ = kind.dtype;
}

void read_batch(const Dataset& dataset, std::span<const SampledSequence> samples, Batch& batch) {
  const std::vector<SampleTensor>& kinds = dataset.tensors();
  batch.tensors.resize(kinds.size());
  for (std::size_t t = 0; t < kinds.size(); ++t) batch.tensors[t].resize(kinds[t], std::ssize(samples));
  batch.global_ids.resize(samples.size());
  std::vector<std::span<std::byte>> parts(kinds.size());
  for (std::size_t b = 0; b < samples.size(); ++b) {
    batch.global_ids[b] = samples[b].global_id;
    for (std::size_t t = 0; t < kinds.size(); ++t) {
      const auto bytes = static_cast<std::size_t>(kinds[t].bytes());
      parts[t] = std::span(static_cast<std::byte*>(batch.tensors[t].view().data) + b * bytes, bytes);
    }
    dataset.read(samples[b].sequence, parts);
  }
}

}  // namespace mica::data
