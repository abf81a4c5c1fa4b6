// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>

#include <nlohmann/json.hpp>

#include "mica/core/error.hpp"
#include "mica/core/half.hpp"
#include "mica/core/rounding.hpp"
#include "mica/io/safetensors.hpp"

#include "safetensors_header.hpp"

namespace mica::io {
namespace {

using Json = nlohmann::json;
constexpr std::int64_t kConvertedNumel = 1 << 20;
constexpr std::size_t kHeaderAlignment = 8;

std::int64_t numel_of(const SafetensorsSpec& tensor) {
  std::int64_t numel = 1;
  for (const std::int64_t dim : tensor.dims) {
    require(dim >= 0 && !__builtin_mul_overflow(numel, dim, &numel), "tensor '{}' has an impossible shape", tensor.name);
  }
  return numel;
}

template <class Half>
void narrow(const float* data, std::int64_t numel, std::uint16_t* halves) {
  for (std::int64_t i = 0; i < numel; ++i) halves[i] = Half(data[i]).bits;
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(const std::string& path, std::vector<SafetensorsSpec> tensors,
                                     const std::map<std::string, std::string>& metadata)
    : file_(path) {
  // DType's order is by width: then every tensor begins at a multiple of its element's bytes.
  std::ranges::sort(tensors, {}, [](const SafetensorsSpec& t) { return std::pair(t.dtype, t.name); });
  // Appended as text: a JSON object in insertion order would search all its keys for each new one.
  std::string text = metadata.empty() ? "" : fmt::format("\"{}\":{}", detail::kMetadataKey, Json(metadata).dump());
  std::int64_t bytes = 0;
  for (const SafetensorsSpec& tensor : tensors) {
    const std::int64_t begin = bytes;
    const std::int64_t numel = numel_of(tensor);
    bytes += numel * dtype_bytes(tensor.dtype);
    const bool is_new = tensor.name != detail::kMetadataKey && places_.emplace(tensor.name, Place{tensor.dtype, numel, begin, 0}).second;
    require(is_new, "{}: a tensor named '{}' cannot be written, or not twice", file_.path(), tensor.name);
    text += fmt::format("{}{}:{{\"dtype\":\"{}\",\"shape\":{},\"data_offsets\":[{},{}]}}", text.empty() ? "" : ",",
                        Json(tensor.name).dump(), detail::safetensors_dtype_name(tensor.dtype), Json(tensor.dims).dump(), begin, bytes);
  }
  text = "{" + text + "}";
  text.resize(round_up(text.size(), kHeaderAlignment), ' ');
  const std::uint64_t text_bytes = text.size();
  require(static_cast<std::int64_t>(text_bytes) <= kMaxSafetensorsHeader,
          "{}: {} tensors make a header of {} bytes, more than the format allows ({})", file_.path(), tensors.size(), text_bytes,
          kMaxSafetensorsHeader);
  const std::int64_t data_begin = 8 + static_cast<std::int64_t>(text_bytes);
  for (auto& [name, place] : places_) place.offset += data_begin;
  raw_ = RawFile::create(file_.temporary());
  raw_->reserve(data_begin + bytes);
  raw_->write_at(0, &text_bytes, 8);
  raw_->write_at(8, text.data(), static_cast<std::int64_t>(text_bytes));
}

void SafetensorsWriter::write(std::string_view tensor, std::int64_t begin, std::int64_t numel, const float* data) {
  const auto found = places_.find(tensor);
  require(found != places_.end(), "{}: tensor '{}' was not announced", file_.path(), tensor);
  Place& place = found->second;
  invariant(begin >= 0 && numel >= 0 && begin <= place.numel - numel, "a range inside the tensor is written");
  const std::int64_t element_bytes = dtype_bytes(place.dtype);
  const std::int64_t offset = place.offset + begin * element_bytes;
  place.num_written += numel;
  if (place.dtype == DType::f32) {
    raw_->write_at(offset, data, numel * element_bytes);
    return;
  }
  halves_.resize(static_cast<std::size_t>(std::min(numel, kConvertedNumel)));
  for (std::int64_t at = 0; at < numel; at += kConvertedNumel) {
    const std::int64_t count = std::min(kConvertedNumel, numel - at);
    if (place.dtype == DType::bf16)
      narrow<bf16>(data + at, count, halves_.data());
    else
      narrow<f16>(data + at, count, halves_.data());
    raw_->write_at(offset + at * element_bytes, halves_.data(), count * element_bytes);
  }
}

void SafetensorsWriter::finish() {
  invariant(raw_.has_value(), "finish() comes once");
  for (const auto& [name, place] : places_) {
    require(place.num_written == place.numel, "{}: {} of the {} elements of tensor '{}' were written", file_.path(), place.num_written,
            place.numel, name);
  }
  raw_->sync();
  raw_->close();
  file_.publish();
  raw_.reset();
}

}  // namespace mica::io
