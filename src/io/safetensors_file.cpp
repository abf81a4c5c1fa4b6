// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <cstring>

#include "mica/core/error.hpp"
#include "mica/core/half.hpp"
#include "mica/io/quoted_name.hpp"
#include "mica/io/safetensors.hpp"

#include "safetensors_header.hpp"

namespace mica::io {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian and read as they are");
constexpr std::int64_t kLengthBytes = 8;
constexpr std::int64_t kConvertNumel = 1 << 20;  // 2 MiB of 16-bit numbers a read

SafetensorsHeader read_header(RawFile& raw) {
  const std::int64_t file_bytes = raw.file_bytes();
  require<CheckpointError>(file_bytes >= kLengthBytes + 2,
                           "{}: has {} bytes, a safetensors file has 10 or more: it is truncated or something else", raw.path(),
                           file_bytes);
  std::uint64_t header_bytes = 0;
  raw.read_at(0, &header_bytes, kLengthBytes);
  require<CheckpointError>(header_bytes <= static_cast<std::uint64_t>(kMaxSafetensorsHeader),
                           "{}: the header is said to have {} bytes, the format allows {}: it is damaged or something else", raw.path(),
                           header_bytes, kMaxSafetensorsHeader);
  require<CheckpointError>(static_cast<std::int64_t>(header_bytes) <= file_bytes - kLengthBytes,
                           "{}: the header is said to have {} bytes, but the file ends after {}: it is truncated", raw.path(), header_bytes,
                           file_bytes - kLengthBytes);
  std::string text(header_bytes, '\0');
  raw.read_at(kLengthBytes, text.data(), static_cast<std::int64_t>(header_bytes));
  return parse_safetensors_header(text, file_bytes, raw.path());
}

template <class Half>
void widen(const std::uint16_t* halves, std::int64_t numel, float* data) {
  for (std::int64_t i = 0; i < numel; ++i) data[i] = static_cast<float>(std::bit_cast<Half>(halves[i]));
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::string& path) : path_(path), raw_(RawFile::open_for_reading(path)) {
  header_ = read_header(*raw_);
  make_index();
}

SafetensorsFile::SafetensorsFile(std::string path, SafetensorsHeader header) : path_(std::move(path)), header_(std::move(header)) {
  make_index();
}

void SafetensorsFile::make_index() {
  for (std::size_t i = 0; i < header_.tensors.size(); ++i) index_.emplace(header_.tensors[i].name, i);
}

const SafetensorsEntry* SafetensorsFile::find(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &header_.tensors[found->second];
}

void SafetensorsFile::read(const SafetensorsEntry& tensor, std::int64_t begin, std::int64_t numel, float* data) {
  const std::optional<DType> dtype = tensor.mica_dtype();
  require<CheckpointError>(dtype.has_value(), "{}: tensor {} has the dtype {}; Mica reads F32, BF16 and F16: convert it first", path(),
                           quoted_name(tensor.name), tensor.dtype);
  invariant(begin >= 0 && numel >= 0 && begin <= tensor.numel - numel, "a range inside the tensor is read");
  if (!raw_) raw_ = RawFile::open_for_reading(path_);
  const std::int64_t element_bytes = dtype_bytes(*dtype);
  if (*dtype == DType::f32) {
    raw_->read_at(tensor.offset + begin * element_bytes, data, numel * element_bytes);
    return;
  }
  halves_.resize(static_cast<std::size_t>(std::min(numel, kConvertNumel)));
  for (std::int64_t at = 0; at < numel; at += kConvertNumel) {
    const std::int64_t count = std::min(kConvertNumel, numel - at);
    raw_->read_at(tensor.offset + (begin + at) * element_bytes, halves_.data(), count * element_bytes);
    if (*dtype == DType::bf16)
      widen<bf16>(halves_.data(), count, data + at);
    else
      widen<f16>(halves_.data(), count, data + at);
  }
}

}  // namespace mica::io
