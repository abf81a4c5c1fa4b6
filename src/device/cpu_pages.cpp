// SPDX-License-Identifier: Apache-2.0
#include "cpu_pages.hpp"

#include <algorithm>
#include <cerrno>

#include <sys/mman.h>

#include "mica/core/error.hpp"
#include "mica/core/rounding.hpp"

namespace mica::detail {
namespace {

constexpr std::uintptr_t kGrowth = std::uintptr_t{64} << 20;  // pages are made writable in steps of this size

void* pointer(std::uintptr_t address) { return reinterpret_cast<void*>(address); }  // NOLINT(performance-no-int-to-ptr)

class CpuPages final : public Pages {
 public:
  explicit CpuPages(std::int64_t reserve_bytes) : bytes_(round_up(static_cast<std::uintptr_t>(reserve_bytes), kGrowth)) {
    void* base = mmap(nullptr, bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    require<IoError>(base != MAP_FAILED, "cannot reserve {} bytes of address space: {}; raise `ulimit -v`", bytes_, errno_text(errno));
    madvise(base, bytes_, MADV_HUGEPAGE);  // advice only: refused where the kernel has none
    base_ = reinterpret_cast<std::uintptr_t>(base);
    writable_end_ = base_;
    begin_ = round_up(base_, kHugePage);
    end_ = round_down(base_ + bytes_, kHugePage);
    page_bytes_ = kHugePage;
  }
  ~CpuPages() override { munmap(pointer(base_), bytes_); }
  CpuPages(const CpuPages&) = delete;
  CpuPages& operator=(const CpuPages&) = delete;

  /// The kernel provides memory when a page is touched.
  bool commit(std::uintptr_t /*begin*/, std::uintptr_t end) override {
    if (end <= writable_end_) return true;
    const std::uintptr_t up_to = std::min(base_ + bytes_, base_ + round_up(end - base_, kGrowth));
    if (mprotect(pointer(writable_end_), up_to - writable_end_, PROT_READ | PROT_WRITE) != 0) return false;
    writable_end_ = up_to;
    return true;
  }

  bool release(std::uintptr_t begin, std::uintptr_t end) override {
    return madvise(pointer(begin), end - begin, MADV_DONTNEED) == 0;  // locked memory stays
  }

 private:
  std::uintptr_t base_ = 0, bytes_ = 0;
  std::uintptr_t writable_end_ = 0;  // beyond it the range is PROT_NONE and not charged to us
};

}  // namespace

std::unique_ptr<Pages> make_cpu_pages(std::int64_t reserve_bytes) { return std::make_unique<CpuPages>(reserve_bytes); }

}  // namespace mica::detail
