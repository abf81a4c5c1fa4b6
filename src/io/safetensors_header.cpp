// SPDX-License-Identifier: Apache-2.0
#include "safetensors_header.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <set>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "mica/core/error.hpp"
#include "mica/io/quoted_name.hpp"
#include "mica/io/safetensors.hpp"

namespace mica::io {
namespace {

constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
constexpr std::size_t kMostDims = 32;

struct DtypeBits {
  std::string_view name;
  std::int64_t bits;
};
/// Every type of the format, so that a tensor that Mica skips is checked like the others.
constexpr std::array kDtypes = std::to_array<DtypeBits>({
    {"BOOL", 8},    {"F4", 4},   {"F6_E2M3", 6},     {"F6_E3M2", 6},     {"U8", 8},   {"I8", 8},   {"F8_E5M2", 8}, {"F8_E4M3", 8},
    {"F8_E8M0", 8}, {"I16", 16}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"U16", 16}, {"F16", 16}, {"BF16", 16},   {"I32", 32},
    {"U32", 32},    {"F32", 32}, {"C64", 64},        {"F64", 64},        {"I64", 64}, {"U64", 64},
});

/// A tensor's entry while the header is being read.
struct RawEntry {
  std::string name, dtype;
  std::vector<std::int64_t> dims;
  std::vector<std::int64_t> offsets;
  bool has_dtype = false, has_shape = false, has_offsets = false;
};

/// Takes the header as it is parsed. JsonValue's tree would need some ten times the memory of the text: a header may have
/// 100 MB, and every rank that reads a model would hold the tree.
class HeaderHandler {
 public:
  using Json = nlohmann::json;
  explicit HeaderHandler(const std::string& path) : path_(path) {}

  std::vector<RawEntry> entries;
  std::map<std::string, std::string> metadata;

  bool start_object(std::size_t) {
    if (depth_ == 2) fail_value("an object");
    if (++depth_ == 2 && !in_metadata_) entries.emplace_back().name = key_;
    return true;
  }
  bool key(std::string& name) {
    if (depth_ == 1) {
      if (!names_.insert(name).second) fail(fmt::format("names {} twice", quoted_name(name)));
      key_ = name;
      in_metadata_ = name == detail::kMetadataKey;
    } else if (in_metadata_) {
      if (metadata.contains(name)) fail(fmt::format("has the metadata key {} twice", quoted_name(name)));
      field_ = name;
    } else {
      take_field(name);
    }
    return true;
  }
  bool end_object() {
    --depth_;
    if (depth_ == 1 && !in_metadata_) {
      const RawEntry& e = entries.back();
      if (!e.has_dtype || !e.has_shape || !e.has_offsets) {
        fail_tensor(fmt::format("has no \"{}\"", !e.has_dtype ? "dtype" : !e.has_shape ? "shape" : "data_offsets"));
      }
    }
    return true;
  }
  bool start_array(std::size_t) {
    if (depth_ != 2 || in_metadata_ || list_ != nullptr || (field_ != "shape" && field_ != "data_offsets")) {
      fail_value("a list");
    }
    list_ = field_ == "shape" ? &entries.back().dims : &entries.back().offsets;
    return true;
  }
  bool end_array() {
    if (list_ == &entries.back().offsets && list_->size() != 2) {
      fail_tensor(fmt::format("has {} data_offsets, expected [begin, end]", list_->size()));
    }
    list_ = nullptr;
    return true;
  }
  bool string(std::string& value) {
    if (depth_ == 2 && in_metadata_) {
      metadata[field_] = value;
    } else if (depth_ == 2 && field_ == "dtype" && list_ == nullptr) {
      entries.back().dtype = value;
    } else {
      fail_value(fmt::format("the text {}", quoted_name(value)));
    }
    return true;
  }
  bool number_unsigned(std::uint64_t value) {
    if (list_ == nullptr) fail_value(fmt::format("the number {}", value));
    if (value > static_cast<std::uint64_t>(kMax)) fail_tensor(fmt::format("has {} {}, past any file", field_, value));
    const std::size_t most = field_ == "shape" ? kMostDims : 2;
    if (list_->size() == most) fail_tensor(fmt::format("has more than {} numbers in \"{}\"", most, field_));
    list_->push_back(static_cast<std::int64_t>(value));
    return true;
  }
  bool number_integer(std::int64_t value) { fail_value(fmt::format("the number {}", value)); }
  bool number_float(double, const std::string& text) { fail_value(fmt::format("the number {}", text)); }
  bool null() { fail_value("null"); }
  bool boolean(bool value) { fail_value(value ? "true" : "false"); }
  bool binary(std::vector<std::uint8_t>&) { fail_value("bytes"); }
  bool parse_error(std::size_t position, const std::string&, const Json::exception& error) {
    std::string what = error.what();
    std::ranges::replace(what, '\n', ' ');
    fail(fmt::format("is no valid JSON at byte {}: {}", position, quoted_name(what)));
  }

 private:
  void take_field(const std::string& name) {
    RawEntry& e = entries.back();
    bool* has = name == "dtype" ? &e.has_dtype : name == "shape" ? &e.has_shape : name == "data_offsets" ? &e.has_offsets : nullptr;
    if (has == nullptr) fail_tensor(fmt::format("has {}, expected dtype, shape and data_offsets only", quoted_name(name)));
    if (*has) fail_tensor(fmt::format("has \"{}\" twice", name));
    *has = true;
    field_ = name;
  }
  [[noreturn]] void fail(const std::string& what) const { throw CheckpointError(fmt::format("{}: the header {}", path_, what)); }
  [[noreturn]] void fail_tensor(const std::string& what) const {
    throw CheckpointError(fmt::format("{}: tensor {} {}", path_, quoted_name(key_), what));
  }
  [[noreturn]] void fail_value(const std::string& seen) const {
    if (depth_ == 0) fail(fmt::format("is {}, expected an object", seen));
    if (in_metadata_) {
      fail(fmt::format("has {} in \"__metadata__\", expected texts by name", seen));
    }
    if (depth_ == 1) fail_tensor(fmt::format("is {}, expected an object", seen));
    fail_tensor(
        fmt::format("has {} in \"{}\", expected {}", seen, field_, field_ == "dtype" ? "a text" : "a list of whole numbers from 0"));
  }

  const std::string& path_;
  int depth_ = 0;
  bool in_metadata_ = false;
  std::string key_, field_;
  std::vector<std::int64_t>* list_ = nullptr;
  std::set<std::string> names_;
};

/// Elements of a tensor and the bytes they take. @throws CheckpointError past 2^63.
void count(const RawEntry& raw, SafetensorsEntry& entry, const std::string& path) {
  const auto dtype = std::ranges::find(kDtypes, raw.dtype, &DtypeBits::name);
  require<CheckpointError>(dtype != kDtypes.end(), "{}: tensor {} has the dtype {}, which the format does not know", path,
                           quoted_name(raw.name), quoted_name(raw.dtype));
  std::int64_t numel = 1;
  std::int64_t bits = 0;
  bool is_overflow = false;
  for (const std::int64_t dim : raw.dims) is_overflow |= __builtin_mul_overflow(numel, dim, &numel);
  is_overflow |= __builtin_mul_overflow(numel, dtype->bits, &bits);
  require<CheckpointError>(!is_overflow, "{}: tensor {} has the shape [{}]: too many elements to count", path, quoted_name(raw.name),
                           fmt::join(raw.dims, ", "));
  require<CheckpointError>(bits % 8 == 0, "{}: tensor {} of dtype {} ends inside a byte", path, quoted_name(raw.name), raw.dtype);
  entry.numel = numel;
  entry.bytes = bits / 8;
}

SafetensorsEntry checked_entry(RawEntry&& raw, std::int64_t data_begin, const std::string& path) {
  SafetensorsEntry entry;
  count(raw, entry, path);
  const std::int64_t begin = raw.offsets[0];
  const std::int64_t end = raw.offsets[1];
  require<CheckpointError>(begin <= end, "{}: tensor {} has the data_offsets [{}, {}], which end before they begin", path,
                           quoted_name(raw.name), begin, end);
  require<CheckpointError>(end - begin == entry.bytes, "{}: tensor {} has {} bytes of data ([{}, {}]), but {} [{}] takes {}", path,
                           quoted_name(raw.name), end - begin, begin, end, raw.dtype, fmt::join(raw.dims, ", "), entry.bytes);
  require<CheckpointError>(end <= kMax - data_begin, "{}: tensor {} ends at byte {} of the data, past any file", path,
                           quoted_name(raw.name), end);
  entry.offset = data_begin + begin;
  entry.name = std::move(raw.name);
  entry.dtype = std::move(raw.dtype);
  entry.dims = std::move(raw.dims);
  return entry;
}

/// Checks that the tensors, in the order of their data, cover the file from the end of the header to the end of the file.
void check_coverage(const std::vector<SafetensorsEntry>& tensors, std::int64_t data_begin, std::int64_t file_bytes,
                    const std::string& path) {
  std::int64_t at = data_begin;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const SafetensorsEntry& each = tensors[i];
    const std::string before = i == 0 ? "the header" : "tensor " + quoted_name(tensors[i - 1].name);
    require<CheckpointError>(each.offset >= at, "{}: tensor {} begins at byte {}, inside {}, which ends at byte {}", path,
                             quoted_name(each.name), each.offset, before, at);
    require<CheckpointError>(each.offset == at, "{}: tensor {} begins at byte {}, but {} ends at byte {}: the format allows no hole", path,
                             quoted_name(each.name), each.offset, before, at);
    at = each.offset + each.bytes;
    require<CheckpointError>(at <= file_bytes, "{}: the file has {} bytes, but tensor {} ends at byte {}: it is truncated", path,
                             file_bytes, quoted_name(each.name), at);
  }
  require<CheckpointError>(at == file_bytes, "{}: the file has {} bytes, but its tensors end at byte {}: it is damaged", path, file_bytes,
                           at);
}

}  // namespace

namespace detail {

std::string_view safetensors_dtype_name(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "F32";
    case DType::bf16:
      return "BF16";
    case DType::f16:
      return "F16";
    default:
      break;
  }
  throw Error(fmt::format("a safetensors file of {} elements was asked for, expected fp32, bf16 or fp16", dtype_name(dtype)));
}

}  // namespace detail

std::optional<DType> SafetensorsEntry::mica_dtype() const {
  for (const DType known : {DType::f32, DType::bf16, DType::f16}) {
    if (dtype == detail::safetensors_dtype_name(known)) return known;
  }
  return std::nullopt;
}

SafetensorsHeader parse_safetensors_header(std::string_view text, std::int64_t file_bytes, const std::string& path) {
  require<CheckpointError>(text.starts_with('{'), "{}: the header does not begin with {{: no safetensors file", path);
  // The JSON reader would treat a NUL as the end of the text.
  require<CheckpointError>(text.find('\0') == std::string_view::npos, "{}: the header holds a NUL byte", path);
  HeaderHandler handler(path);
  nlohmann::json::sax_parse(text, &handler);
  const std::int64_t data_begin = 8 + static_cast<std::int64_t>(text.size());
  SafetensorsHeader header;
  header.metadata = std::move(handler.metadata);
  header.tensors.reserve(handler.entries.size());
  for (RawEntry& raw : handler.entries) header.tensors.push_back(checked_entry(std::move(raw), data_begin, path));
  // Empty tensors come before the one that begins where they do.
  std::ranges::stable_sort(header.tensors, {}, [](const SafetensorsEntry& e) { return std::pair(e.offset, e.bytes); });
  check_coverage(header.tensors, data_begin, file_bytes, path);
  return header;
}

}  // namespace mica::io
