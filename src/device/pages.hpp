// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace mica::detail {

/// A range of addresses, reserved once, and the memory behind it, page by page: where an arena gets its memory.
class Pages {
 public:
  virtual ~Pages() = default;
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  /// Whole pages.
  [[nodiscard]] std::uintptr_t begin() const { return begin_; }
  [[nodiscard]] std::uintptr_t end() const { return end_; }
  [[nodiscard]] std::uintptr_t page_bytes() const { return page_bytes_; }
  /// Every block's address is a multiple of this.
  [[nodiscard]] std::uintptr_t alignment() const { return alignment_; }

  /// Puts memory behind these pages, which have none. False if memory is exhausted; then none of them has any.
  [[nodiscard]] virtual bool commit(std::uintptr_t begin, std::uintptr_t end) = 0;
  /// Returns the memory of these pages, which must be unused, to the system. False if the system keeps it allocated.
  [[nodiscard]] virtual bool release(std::uintptr_t begin, std::uintptr_t end) = 0;

 protected:
  Pages() = default;
  std::uintptr_t begin_ = 0, end_ = 0, page_bytes_ = 0, alignment_ = 64;
};

}  // namespace mica::detail
