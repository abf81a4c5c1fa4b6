// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

namespace mica {

/// A move-only owner of a C library's handle (MPI_Comm, hid_t ...).
/// Traits: `using type`, `static type null()`, `static void close(type) noexcept`.
template <class Traits>
class UniqueHandle {
 public:
  using type = typename Traits::type;

  UniqueHandle() noexcept : handle_(Traits::null()) {}
  explicit UniqueHandle(type handle) noexcept : handle_(handle) {}
  UniqueHandle(UniqueHandle&& other) noexcept : handle_(other.release()) {}
  UniqueHandle& operator=(UniqueHandle&& other) noexcept {
    if (this != &other) reset(other.release());
    return *this;
  }
  UniqueHandle(const UniqueHandle&) = delete;
  UniqueHandle& operator=(const UniqueHandle&) = delete;
  ~UniqueHandle() { reset(); }

  [[nodiscard]] type get() const noexcept { return handle_; }
  [[nodiscard]] explicit operator bool() const noexcept { return handle_ != Traits::null(); }
  /// Gives up ownership.
  [[nodiscard]] type release() noexcept { return std::exchange(handle_, Traits::null()); }
  void reset(type handle = Traits::null()) noexcept {
    if (handle_ != Traits::null()) Traits::close(handle_);
    handle_ = handle;
  }
  /// For C functions that write a handle.
  [[nodiscard]] type* put() noexcept {
    reset();
    return &handle_;
  }

 private:
  type handle_;
};

}  // namespace mica
