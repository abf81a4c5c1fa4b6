// SPDX-License-Identifier: Apache-2.0
#include "hdf5_call.hpp"

#include <array>
#include <cstdlib>

#include "mica/io/raw_file.hpp"

namespace mica::io {

void Hdf5IdTraits::close(type id) noexcept {
  const detail::Hdf5Section section;
  H5Idec_ref(id);  // closes an object of any kind
}

namespace detail {
namespace {

/// The error stack from the cause outwards: the first few messages say what happened, the rest are callers.
struct Messages {
  static constexpr int kMax = 3;
  int num_seen = 0;
  std::string text;
};

/// One message of the stack, e.g. "H5FD_sec2_open: unable to open file: name = 'x', errno = 2".
herr_t append_message(unsigned /*depth*/, const H5E_error2_t* error, void* out) {
  auto& messages = *static_cast<Messages*>(out);
  if (++messages.num_seen > Messages::kMax) return 0;
  if (!messages.text.empty()) messages.text += "; ";
  messages.text += error->func_name != nullptr ? error->func_name : "?";
  messages.text += ": ";
  messages.text += error->desc != nullptr ? error->desc : "(no description)";
  return 0;
}

/// Error texts are one line (users grep for it); HDF5's messages may hold line ends.
void make_one_line(std::string& text) {
  for (char& c : text) {
    if (c == '\n' || c == '\r') c = ' ';
  }
}

/// The errno that HDF5's file driver wrote into its message; 0 if there is none.
int errno_in(const std::string& text) {
  constexpr std::string_view kMark = "errno = ";
  const std::size_t at = text.find(kMark);
  return at == std::string::npos ? 0 : std::atoi(text.c_str() + at + kMark.size());
}

/// A floating-point type of 16 bits that HDF5 has no name for.
Hdf5Id make_float16(size_t exponent_bits, size_t mantissa_bits, size_t bias, const Hdf5Where& where) {
  Hdf5Id type = own(H5Tcopy(H5T_IEEE_F32LE), "H5Tcopy", where);
  check(H5Tset_fields(type.get(), 15, mantissa_bits, exponent_bits, 0, mantissa_bits), "H5Tset_fields", where);
  check(H5Tset_size(type.get(), 2), "H5Tset_size", where);
  check(H5Tset_ebias(type.get(), bias), "H5Tset_ebias", where);
  return type;
}

}  // namespace

Hdf5Section::Hdf5Section() {
  static std::recursive_mutex mutex;
  lock_ = std::unique_lock(mutex);
  static const herr_t no_clean_up = H5dont_atexit();
  static_cast<void>(no_clean_up);
  H5Eget_auto2(H5E_DEFAULT, &function_, &data_);
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
}

void throw_hdf5_error(const char* call, const Hdf5Where& where) {
  Messages messages;
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, append_message, &messages);
  H5Eclear2(H5E_DEFAULT);
  make_one_line(messages.text);
  const int error_number = errno_in(messages.text);
  if (const std::string advice = full_disk_text(where.path, error_number); !advice.empty()) {
    throw Hdf5Error(fmt::format("{}: write failed: {}{}", where.path, errno_text(error_number), advice));
  }
  const std::string object = where.object.empty() ? "" : fmt::format(" on '{}'", where.object);
  throw Hdf5Error(
      fmt::format("{}: {} failed{}; HDF5 says: {}", where.path, call, object, messages.text.empty() ? "(nothing)" : messages.text));
}

Hdf5Id own(hid_t id, const char* call, const Hdf5Where& where) { return Hdf5Id(check(id, call, where)); }

Hdf5Id make_type(FileType type, const Hdf5Where& where) {
  const auto copy = [&](hid_t named) { return own(H5Tcopy(named), "H5Tcopy", where); };
  switch (type) {
    case FileType::f32:
      return copy(H5T_IEEE_F32LE);
    case FileType::f64:
      return copy(H5T_IEEE_F64LE);
    case FileType::bf16:
      return make_float16(8, 7, 127, where);
    case FileType::f16:
      return make_float16(5, 10, 15, where);
    case FileType::i64:
      return copy(H5T_STD_I64LE);
    case FileType::i32:
      return copy(H5T_STD_I32LE);
    case FileType::u32:
      return copy(H5T_STD_U32LE);
    case FileType::u16:
      return copy(H5T_STD_U16LE);
    case FileType::u8:
      return copy(H5T_STD_U8LE);
    case FileType::other:
      break;
  }
  throw Hdf5Error(
      fmt::format("{}: '{}' has an element type that Mica cannot read or write (expected fp32, bf16, fp16, fp64, "
                  "int64, int32, uint32, uint16 or uint8, little-endian)",
                  where.path, where.object));
}

FileType identify_type(hid_t type, const Hdf5Where& where) {
  constexpr std::array kAll{FileType::f32, FileType::bf16, FileType::f16, FileType::f64, FileType::i64,
                            FileType::i32, FileType::u32,  FileType::u16, FileType::u8};
  for (const FileType candidate : kAll) {
    const Hdf5Id known = make_type(candidate, where);
    if (check(H5Tequal(known.get(), type), "H5Tequal", where) > 0) return candidate;
  }
  return FileType::other;
}

}  // namespace detail
}  // namespace mica::io
