// SPDX-License-Identifier: Apache-2.0
#include "mica/data/tensor_dataset.hpp"

#include <cstring>
#include <limits>

#include "mica/core/error.hpp"
#include "mica/io/crc32c.hpp"

namespace mica::data {
namespace {

std::span<const std::byte> bytes_of(const SampleArray& array) {
  return std::visit([](const auto& values) { return std::as_bytes(std::span(values)); }, array.values);
}

/// i64 values as i32.
void narrow(SampleArray& array) {
  const auto* wide = std::get_if<std::vector<std::int64_t>>(&array.values);
  if (wide == nullptr) return;
  std::vector<std::int32_t> values;
  values.reserve(wide->size());
  for (const std::int64_t value : *wide) {
    require<ConfigError>(value >= std::numeric_limits<std::int32_t>::min() && value <= std::numeric_limits<std::int32_t>::max(),
                         "TensorDataset: value {} of '{}', number {}, does not fit in 32 bits; models take ids and classes as i32", value,
                         array.name, values.size());
    values.push_back(static_cast<std::int32_t>(value));
  }
  array.values = std::move(values);
}

SampleTensor tensor_of(const SampleArray& array) {
  require<ConfigError>(array.shape.numel() > 0 && array.shape.num_dims() < Shape::kMaxDims,
                       "TensorDataset: '{}' has shape {} a sample, expected at least one element and at most {} dims", array.name,
                       array.shape.to_string(), Shape::kMaxDims - 1);
  const bool is_float = std::holds_alternative<std::vector<float>>(array.values);
  return {.name = array.name, .shape = array.shape, .dtype = is_float ? DType::f32 : DType::i32};
}

std::int64_t samples_of(const SampleArray& array) {
  const std::int64_t values = std::visit([](const auto& all) { return std::ssize(all); }, array.values);
  require<ConfigError>(values > 0, "TensorDataset: '{}' has no samples", array.name);
  require<ConfigError>(values % array.shape.numel() == 0,
                       "TensorDataset: '{}' has {} values, which is no whole number of samples of shape {} ({} values each)", array.name,
                       values, array.shape.to_string(), array.shape.numel());
  return values / array.shape.numel();
}

}  // namespace

TensorDataset::TensorDataset(std::vector<SampleArray> arrays) : arrays_(std::move(arrays)) {
  require<ConfigError>(!arrays_.empty(), "TensorDataset: no arrays are given, expected the inputs and, to train on, the targets");
  for (SampleArray& array : arrays_) {
    narrow(array);
    tensors_.push_back(tensor_of(array));
    const std::int64_t samples = samples_of(array);
    if (&array == &arrays_.front()) num_samples_ = samples;
    require<ConfigError>(samples == num_samples_, "TensorDataset: '{}' has {} samples and '{}' has {}, expected as many of each",
                         arrays_.front().name, num_samples_, array.name, samples);
  }
}

void TensorDataset::read(std::int64_t sample, std::span<const std::span<std::byte>> out) const {
  invariant(sample >= 0 && sample < num_samples_, "a sample's index is below num_samples()");
  invariant(out.size() == tensors_.size(), "a sample has one part for each tensor");
  for (std::size_t i = 0; i < out.size(); ++i) {
    const auto bytes = static_cast<std::size_t>(tensors_[i].bytes());
    invariant(out[i].size() == bytes, "a part of a sample has its tensor's bytes");
    std::memcpy(out[i].data(), bytes_of(arrays_[i]).subspan(static_cast<std::size_t>(sample) * bytes, bytes).data(), bytes);
  }
}

std::string TensorDataset::fingerprint() const {
  std::string kinds;
  std::uint32_t crc = 0;
  for (std::size_t i = 0; i < arrays_.size(); ++i) {
    const SampleTensor& tensor = tensors_[i];
    kinds += fmt::format("{}{} {} {}", i == 0 ? "" : ", ", tensor.name, dtype_name(tensor.dtype), tensor.shape.to_string());
    const std::span<const std::byte> bytes = bytes_of(arrays_[i]);
    crc = io::crc32c(bytes.data(), static_cast<std::int64_t>(bytes.size()), crc);
  }
  return fmt::format("{} samples of {}, crc32c {:08x}", num_samples_, kinds, crc);
}

}  // namespace mica::data
