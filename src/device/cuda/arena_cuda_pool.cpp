#include <limits>

#include "../arena.hpp"
#include "cuda_pages.hpp"
#include "cuda_pool.hpp"

namespace mica::detail {
namespace {

void* pointer(std::uintptr_t address) { return reinterpret_cast<void*>(address); }  // NOLINT(performance-no-int-to-ptr)

/// Memory stays with the pool once it has it, since taking it from the driver and giving it back stops the host (and may
/// stop the device): only when no more is to be had, what is free elsewhere in the range is given back first.
class ArenaCudaPool final : public CudaPool {
 public:
  [[nodiscard]] DeviceKind device_of(const void* data) const override {
    if (arena_.contains(reinterpret_cast<std::uintptr_t>(data))) return DeviceKind::cuda;
    return CudaPool::device_of(data);
  }

 protected:
  Taken take(std::int64_t bytes, Stream& home) override {
    stay_on_gpu();
    Arena::Taken taken = arena_.take(bytes, home);
    if (taken.address == 0) return {};
    if (arena_.commit(taken.address) || (arena_.release(arena_.not_resident_bytes_of(taken.address)) > 0 && arena_.commit(taken.address))) {
      return {pointer(taken.address), std::move(taken.pending)};
    }
    arena_.give(taken.address, nullptr, std::move(taken.pending));
    return {};
  }
  void give(void* data, Stream* home, std::vector<Event> pending) override {
    arena_.give(reinterpret_cast<std::uintptr_t>(data), home, std::move(pending));
  }
  void release_free_memory() override {
    stay_on_gpu();
    arena_.release(std::numeric_limits<std::int64_t>::max());
  }
  [[nodiscard]] std::int64_t reserved_bytes() const override { return arena_.resident_bytes(); }

 private:
  Arena arena_{make_cuda_pages()};
};

}  // namespace

std::unique_ptr<Pool> make_arena_cuda_pool() { return std::make_unique<ArenaCudaPool>(); }

}  // namespace mica::detail
