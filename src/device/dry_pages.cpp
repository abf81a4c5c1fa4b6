// SPDX-License-Identifier: Apache-2.0
#include "dry_pages.hpp"

#include <atomic>

#include "mica/core/rounding.hpp"

#include "cpu_pages.hpp"

namespace mica::detail {
namespace {

constexpr std::uintptr_t kFirst = std::uintptr_t{1} << 50;

class DryPages final : public Pages {
 public:
  DryPages(std::uintptr_t bytes, std::uintptr_t alignment) {
    static std::atomic<std::uintptr_t> next{kFirst};
    page_bytes_ = kHugePage;
    alignment_ = alignment;
    begin_ = next.fetch_add(round_up(bytes, kHugePage));
    end_ = begin_ + round_up(bytes, kHugePage);
  }
  bool commit(std::uintptr_t /*begin*/, std::uintptr_t /*end*/) override { return true; }
  bool release(std::uintptr_t /*begin*/, std::uintptr_t /*end*/) override { return true; }
};

}  // namespace

std::unique_ptr<Pages> make_dry_pages(std::int64_t bytes, std::uintptr_t alignment) {
  return std::make_unique<DryPages>(static_cast<std::uintptr_t>(bytes), alignment);
}

}  // namespace mica::detail
