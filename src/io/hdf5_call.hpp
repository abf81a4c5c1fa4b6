// SPDX-License-Identifier: Apache-2.0
#pragma once

// Private to io: makes and checks every call into HDF5.

#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <hdf5.h>

#include "mica/core/error.hpp"
#include "mica/io/hdf5.hpp"

namespace mica::io::detail {

static_assert(sizeof(hid_t) == sizeof(Hdf5Id::type), "hid_t is passed as a 64-bit integer");

/// Every call into HDF5 is made while one of these lives. They may nest.
/// One thread at a time is inside: many builds of HDF5 are not thread-safe, and those that are take a lock of their own for
/// every call, so no parallelism is lost.
/// HDF5 prints nothing meanwhile; the previous error handler is restored. (A program that uses Mica may have set its own.)
/// The first one also turns off HDF5's clean-up at exit: a file whose H5Fclose failed on a full disk stays in its tables,
/// half freed, and the clean-up crashes on it, which hides the exit status. Mica closes what it opens. This has no effect
/// in a program that used HDF5 before Mica did.
class Hdf5Section {
 public:
  Hdf5Section();
  ~Hdf5Section() { H5Eset_auto2(H5E_DEFAULT, function_, data_); }
  Hdf5Section(const Hdf5Section&) = delete;
  Hdf5Section& operator=(const Hdf5Section&) = delete;

 private:
  std::unique_lock<std::recursive_mutex> lock_;
  H5E_auto2_t function_ = nullptr;
  void* data_ = nullptr;
};

/// What a call was about, for the error text.
struct Hdf5Where {
  const std::string& path;
  std::string_view object = {};
};

/// Throws Hdf5Error with the thread's error stack. Call it before any other HDF5 call, which would clear the stack.
[[noreturn]] void throw_hdf5_error(const char* call, const Hdf5Where& where);

/// Throws on a negative value, by which every HDF5 call reports failure. Returns the value.
template <class T>
T check(T value, const char* call, const Hdf5Where& where) {
  if (value < 0) throw_hdf5_error(call, where);
  return value;
}

/// As check, for calls that return an identifier, which the caller then owns.
[[nodiscard]] Hdf5Id own(hid_t id, const char* call, const Hdf5Where& where);

/// Extents as HDF5 takes them.
[[nodiscard]] inline std::vector<hsize_t> to_hsize(std::span<const std::int64_t> values) { return {values.begin(), values.end()}; }

/// The in-file type (little-endian). @throws Hdf5Error.
[[nodiscard]] Hdf5Id make_type(FileType type, const Hdf5Where& where);
/// Which of Mica's types an HDF5 type is; `other` if none.
[[nodiscard]] FileType identify_type(hid_t type, const Hdf5Where& where);

}  // namespace mica::io::detail
