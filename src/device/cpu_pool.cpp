// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <limits>
#include <memory>
#include <vector>

#include <unistd.h>

#include "mica/core/error.hpp"
#include "mica/device/pool.hpp"

#include "arena.hpp"
#include "cpu_pages.hpp"
#include "dry_gpu_pool.hpp"
#include "dry_pages.hpp"

namespace mica {
namespace {

using detail::Arena;

/// Address space of one arena: no more than the machine's memory can ever be in use.
std::int64_t default_reserve_bytes() {
#ifdef __SANITIZE_THREAD__
  return std::int64_t{2} << 30;  // ThreadSanitizer leaves a process some 0.5 to 1.5 TiB of addresses, and tests have up to 64 ranks in one
#endif
  const auto pages = static_cast<std::uint64_t>(std::max(sysconf(_SC_PHYS_PAGES), 1L));
  const auto page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  return static_cast<std::int64_t>(std::bit_ceil(std::max<std::uint64_t>(pages * page, std::uint64_t{1} << 30)));
}

/// All memory in one arena over lazily touched pages. [Note: resident memory]
/// (Separate ranges for small blocks, for memory that lives for the whole run, for activations or for unsharded storage were
/// tried over 200 patterns of training: none fragments less, and free memory of one range is of no use to another.) Free
/// memory stays resident for the next owner, but resident memory may not exceed the highest use so far (plus kSlackBytes and
/// 1/kSlackDivisor): an allocation that needs fresh pages beyond that first returns free ones. So the operating system's view
/// follows stats().peak even where fragmentation would make it drift; the price is that a repeating pattern touches the
/// pages by which it fragments again in each step.
class CpuPool final : public Pool {
 public:
  explicit CpuPool(bool is_dry) : is_dry_(is_dry) {}

 protected:
  Taken take(std::int64_t bytes, Stream& home) override {
    Arena* arena = nullptr;
    Arena::Taken taken;
    for (const auto& candidate : arenas_) {
      arena = candidate.get();
      taken = arena->take(bytes, home);
      if (taken.address != 0) break;
    }
    if (arena == nullptr || taken.address == 0) {
      arena = add_arena(bytes);
      taken = arena->take(bytes, home);
      invariant(taken.address != 0, "a fresh arena that holds the allocation it was made for");
    }
    make_room_for(arena->not_resident_bytes_of(taken.address));
    if (!arena->commit(taken.address)) {
      arena->give(taken.address, nullptr, std::move(taken.pending));
      return {};
    }
    return {reinterpret_cast<void*>(taken.address), std::move(taken.pending)};  // NOLINT(performance-no-int-to-ptr)
  }

  void give(void* data, Stream* home, std::vector<Event> pending) override {
    const auto address = reinterpret_cast<std::uintptr_t>(data);
    for (const auto& arena : arenas_) {
      if (arena->contains(address)) return arena->give(address, home, std::move(pending));
    }
    invariant(false, "memory given back to the pool that it came from");
  }

  void release_free_memory() override { release(std::numeric_limits<std::int64_t>::max()); }

  [[nodiscard]] std::int64_t reserved_bytes() const override { return sum(&Arena::resident_bytes); }

 private:
  static constexpr std::int64_t kSlackBytes = 8 << 20;  // pages that blocks share
  static constexpr std::int64_t kSlackDivisor = 50;     // and 2 %: up to there fragmentation is cheaper than returning pages

  void make_room_for(std::int64_t fresh_bytes) {
    highest_use_ = std::max(highest_use_, sum(&Arena::in_use_bytes));
    if (fresh_bytes == 0) return;
    const std::int64_t budget = highest_use_ + highest_use_ / kSlackDivisor + kSlackBytes;
    const std::int64_t excess = reserved_bytes() + fresh_bytes - budget;
    if (excess > 0) release(excess);
  }

  void release(std::int64_t bytes) {
    for (const auto& arena : arenas_) {
      if (bytes > 0) bytes -= arena->release(bytes);
    }
  }

  /// @throws IoError if even the address space needed now is refused.
  Arena* add_arena(std::int64_t bytes) {
    if (is_dry_) {
      const std::int64_t plenty = std::max(std::int64_t{1} << 44, 2 * bytes);
      return arenas_.emplace_back(std::make_unique<Arena>(detail::make_dry_pages(plenty, 64))).get();
    }
    const std::int64_t least = bytes + kSlackBytes;
    bool is_scarce = false;  // under ulimit -v, half of what is available is left for threads and files
    for (std::int64_t reserve = std::max(default_reserve_bytes(), 2 * bytes);; reserve = std::max(reserve / 2, least)) {
      try {
        std::unique_ptr<detail::Pages> pages = detail::make_cpu_pages(reserve);
        if (!is_scarce || reserve == least) return arenas_.emplace_back(std::make_unique<Arena>(std::move(pages))).get();
        is_scarce = false;
      } catch (const IoError&) {
        if (reserve == least) throw;
        is_scarce = true;
      }
    }
  }

  [[nodiscard]] std::int64_t sum(std::int64_t (Arena::*value)() const) const {
    std::int64_t total = 0;
    for (const auto& arena : arenas_) total += (arena.get()->*value)();
    return total;
  }

  bool is_dry_;
  std::vector<std::unique_ptr<Arena>> arenas_;  // one, unless address space is scarce
  std::int64_t highest_use_ = 0;
};

}  // namespace

std::unique_ptr<Pool> make_cpu_pool() { return std::make_unique<CpuPool>(/*is_dry=*/false); }
std::unique_ptr<Pool> make_dry_pool(DeviceKind like) {
  if (like == DeviceKind::cuda) return detail::make_dry_gpu_pool();
  return std::make_unique<CpuPool>(/*is_dry=*/true);
}

}  // namespace mica
