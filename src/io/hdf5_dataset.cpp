// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <span>

#include <fmt/ranges.h>

#include "hdf5_call.hpp"

namespace mica::io {
namespace {

using detail::check;
using detail::Hdf5Where;
using detail::own;
using detail::to_hsize;

std::string dims_text(std::span<const std::int64_t> dims) { return fmt::format("[{}]", fmt::join(dims, ", ")); }

std::int64_t product(std::span<const std::int64_t> values) {
  std::int64_t result = 1;
  for (const std::int64_t v : values) result *= v;
  return result;
}

/// Whether an int64 holds the number of bytes: a damaged file may name any extents.
bool is_countable(std::span<const hsize_t> dims, FileType type) {
  std::int64_t bytes = std::max<std::int64_t>(file_type_bytes(type), 1);
  return std::ranges::none_of(dims, [&](hsize_t dim) { return __builtin_mul_overflow(bytes, dim, &bytes); });
}

/// A dense dataspace for the memory side of a box.
Hdf5Id memory_space(std::int64_t numel, const Hdf5Where& where) {
  const hsize_t n = static_cast<hsize_t>(numel);
  return own(H5Screate_simple(1, &n, nullptr), "H5Screate_simple", where);
}

}  // namespace

FileType file_type(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return FileType::f32;
    case DType::bf16:
      return FileType::bf16;
    case DType::f16:
      return FileType::f16;
    case DType::f64:
      return FileType::f64;
    case DType::i64:
      return FileType::i64;
    case DType::i32:
      return FileType::i32;
    case DType::u16:
      return FileType::u16;
    case DType::u8:
    case DType::moment8:
    case DType::square8:
      return FileType::u8;
  }
  return FileType::other;
}

std::int64_t file_type_bytes(FileType type) {
  switch (type) {
    case FileType::f64:
    case FileType::i64:
      return 8;
    case FileType::f32:
    case FileType::i32:
    case FileType::u32:
      return 4;
    case FileType::bf16:
    case FileType::f16:
    case FileType::u16:
      return 2;
    case FileType::u8:
      return 1;
    case FileType::other:
      break;
  }
  return 0;
}

std::string_view file_type_name(FileType type) {
  constexpr std::array<std::string_view, 10> kNames{"fp32", "bf16", "fp16", "fp64", "int64", "int32", "uint32", "uint16", "uint8", "other"};
  return kNames[static_cast<std::size_t>(type)];
}

Hdf5Dataset::Hdf5Dataset(Hdf5Id id, std::string path, std::string name)
    : id_(std::move(id)), path_(std::move(path)), name_(std::move(name)) {
  const Hdf5Where where{path_, name_};
  const Hdf5Id space = own(H5Dget_space(id_.get()), "H5Dget_space", where);
  const int num_dims = check(H5Sget_simple_extent_ndims(space.get()), "H5Sget_simple_extent_ndims", where);
  std::vector<hsize_t> dims(static_cast<std::size_t>(num_dims));
  check(H5Sget_simple_extent_dims(space.get(), dims.data(), nullptr), "H5Sget_simple_extent_dims", where);
  dims_.assign(dims.begin(), dims.end());
  if (H5Sget_simple_extent_type(space.get()) == H5S_NULL) dims_ = {0};
  const Hdf5Id type = own(H5Dget_type(id_.get()), "H5Dget_type", where);
  type_ = detail::identify_type(type.get(), where);
  require<Hdf5Error>(is_countable(dims, type_), "{}: '{}' has the extents [{}], more than any file can hold: the file is damaged", path_,
                     name_, fmt::join(dims, ", "));
}

DType Hdf5Dataset::dtype() const {
  for (const DType d : {DType::f32, DType::bf16, DType::f16, DType::f64, DType::i64, DType::i32, DType::u16, DType::u8}) {
    if (file_type(d) == type_) return d;
  }
  throw Hdf5Error(fmt::format("{}: '{}' holds elements of type {}, which no tensor has", path_, name_, file_type_name(type_)));
}

std::int64_t Hdf5Dataset::numel() const { return product(dims_); }

bool Hdf5Dataset::is_contiguous() const {
  const detail::Hdf5Section section;
  const Hdf5Where where{path_, name_};
  std::string file(path_.size() + 1, '\0');  // where it is stored: an external link leads into another file
  const ssize_t length = check(H5Fget_name(id_.get(), file.data(), file.size()), "H5Fget_name", where);
  if (length != std::ssize(path_) || file.compare(0, path_.size(), path_) != 0) return false;
  const Hdf5Id plist = own(H5Dget_create_plist(id_.get()), "H5Dget_create_plist", where);
  return H5Pget_layout(plist.get()) == H5D_CONTIGUOUS && H5Pget_external_count(plist.get()) == 0;
}

std::int64_t Hdf5Dataset::file_offset() const {
  if (!is_contiguous()) return -1;
  const detail::Hdf5Section section;
  const haddr_t offset = H5Dget_offset(id_.get());
  return offset == HADDR_UNDEF ? -1 : static_cast<std::int64_t>(offset);
}

void Hdf5Dataset::check_bytes(std::int64_t bytes) const {
  require<Hdf5Error>(bytes == this->bytes(), "{}: '{}' holds {} elements {} of type {}, {} bytes, but the memory given has {} bytes", path_,
                     name_, numel(), dims_text(dims_), file_type_name(type_), this->bytes(), bytes);
}

void Hdf5Dataset::write(const void* data, std::int64_t bytes) {
  const detail::Hdf5Section section;
  const Hdf5Where where{path_, name_};
  const Hdf5Id type = detail::make_type(type_, where);
  check_bytes(bytes);
  if (bytes == 0) return;
  check(H5Dwrite(id_.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, data), "H5Dwrite", where);
}

void Hdf5Dataset::read(void* data, std::int64_t bytes) const {
  const detail::Hdf5Section section;
  const Hdf5Where where{path_, name_};
  const Hdf5Id type = detail::make_type(type_, where);
  check_bytes(bytes);
  if (bytes == 0) return;
  check(H5Dread(id_.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, data), "H5Dread", where);
}

void Hdf5Dataset::write_range(std::int64_t begin, std::int64_t count, const void* data) {
  const detail::Hdf5Section section;
  const Hdf5Where where{path_, name_};
  const Hdf5Id type = detail::make_type(type_, where);
  const bool fits = dims_.size() == 1 && begin >= 0 && count >= 0 && begin <= dims_[0] && count <= dims_[0] - begin;
  require<Hdf5Error>(fits, "{}: elements {} to {} leave '{}', whose shape is {}", path_, begin, begin + count, name_, dims_text(dims_));
  if (count == 0) return;
  const Hdf5Id space = own(H5Dget_space(id_.get()), "H5Dget_space", where);
  const std::array<std::int64_t, 1> start{begin}, extent{count};
  check(H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, to_hsize(start).data(), nullptr, to_hsize(extent).data(), nullptr),
        "H5Sselect_hyperslab", where);
  const Hdf5Id memory = memory_space(count, where);
  check(H5Dwrite(id_.get(), type.get(), memory.get(), space.get(), H5P_DEFAULT, data), "H5Dwrite", where);
}

}  // namespace mica::io
