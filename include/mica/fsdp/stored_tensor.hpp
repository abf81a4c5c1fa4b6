// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <source_location>
#include <utility>

#include "mica/fsdp/rate_limiter.hpp"
#include "mica/tensor/tensor_view.hpp"

namespace mica::fsdp {

/// One of a unit's arrays: its memory, while allocated, and the event after which it may be read. Empty: not allocated.
class StoredTensor {
 public:
  StoredTensor() = default;
  StoredTensor(Buffer buffer, std::int64_t numel, DType dtype)
      : is_there_(true), buffer_(std::move(buffer)), view_{buffer_.data(), Shape{numel}, dtype} {}
  /// An alias of memory that outlives it.
  explicit StoredTensor(TensorView alias) : is_there_(true), view_(alias) {}
  StoredTensor(StoredTensor&& other) noexcept { *this = std::move(other); }
  StoredTensor& operator=(StoredTensor&& other) noexcept {
    is_there_ = std::exchange(other.is_there_, false);
    buffer_ = std::move(other.buffer_);
    view_ = std::exchange(other.view_, {});
    ready_ = std::exchange(other.ready_, {});
    return *this;
  }

  [[nodiscard]] explicit operator bool() const { return is_there_; }
  [[nodiscard]] const TensorView& view() const { return view_; }
  [[nodiscard]] DType dtype() const { return view_.dtype; }

  /// The work enqueued on `s` so far writes it.
  void written_on(Stream& s) { ready_ = s.record(); }
  /// `s` reads it from now on.
  void wait_on(Stream& s, std::source_location site = std::source_location::current()) const { s.wait(ready_, site); }
  /// Another stream's last use (Buffer::used_until). Does nothing for an alias.
  void used_until(const Event& last_use) {
    if (buffer_) buffer_.used_until(last_use);
  }
  /// Empties it. The work enqueued on `last_user` so far was the memory's last use.
  void give_to(RateLimiter& limiter, Stream& last_user) {
    if (buffer_) limiter.release(std::move(buffer_), last_user.record());
    reset();
  }
  /// Empties it.
  void reset() { *this = {}; }

 private:
  bool is_there_ = false;
  Buffer buffer_;  // none: an alias
  TensorView view_;
  Event ready_;
};

}  // namespace mica::fsdp
