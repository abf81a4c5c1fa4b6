// SPDX-License-Identifier: Apache-2.0
#include <limits>

#include "mica/device/cuda/block_memory.hpp"

#include "../arena.hpp"
#include "cuda_blocks.hpp"
#include "cuda_pages.hpp"
#include "cuda_pool.hpp"

namespace mica::detail {
namespace {

void* pointer(std::uintptr_t address) { return reinterpret_cast<void*>(address); }  // NOLINT(performance-no-int-to-ptr)

/// The pool keeps the memory that it has, since taking it from the driver and returning it blocks the host (and may stall the
/// device). Only when the driver has no more, free memory elsewhere in the range is returned first.
class ArenaCudaPool final : public CudaPool, public BlockMemory {
 public:
  [[nodiscard]] DeviceKind device_of(const void* data) const override {
    if (arena_.contains(number(data))) return DeviceKind::cuda;
    return CudaPool::device_of(data);
  }

  [[nodiscard]] Buffer allocate_block(std::int64_t bytes, MemoryRole role, Stream& home) override {
    wants_block_ = true;
    struct Reset {
      bool& flag;
      ~Reset() { flag = false; }
    } const reset{wants_block_};
    return allocate(bytes, role, home);
  }
  [[nodiscard]] std::int64_t block_bytes(const void* begin) const override { return blocks_.bytes_of(number(begin)); }
  void add_block_user(std::weak_ptr<BlockUser> user) override { blocks_.add_user(std::move(user)); }

 protected:
  Taken take(std::int64_t bytes, Stream& home) override {
    stay_on_gpu();
    if (wants_block_) return take_block(bytes);
    Arena::Taken taken = arena_.take(bytes, home);
    if (taken.address == 0) return {};
    if (arena_.commit(taken.address) || (arena_.release(arena_.not_resident_bytes_of(taken.address)) > 0 && arena_.commit(taken.address)) ||
        (blocks_.release() > 0 && arena_.commit(taken.address))) {
      return {pointer(taken.address), std::move(taken.pending)};
    }
    arena_.give(taken.address, nullptr, std::move(taken.pending));
    return {};
  }
  void give(void* data, Stream* home, std::vector<Event> pending) override {
    if (!arena_.contains(number(data))) return blocks_.give(number(data), std::move(pending));
    arena_.give(number(data), home, std::move(pending));
  }
  void release_free_memory() override {
    stay_on_gpu();
    arena_.release(std::numeric_limits<std::int64_t>::max());
    blocks_.release();
  }
  [[nodiscard]] std::int64_t reserved_bytes() const override { return arena_.resident_bytes() + blocks_.resident_bytes(); }

 private:
  static std::uintptr_t number(const void* data) { return reinterpret_cast<std::uintptr_t>(data); }

  Taken take_block(std::int64_t bytes) {
    Arena::Taken taken = blocks_.take(bytes);
    if (taken.address == 0 && arena_.release(bytes) + blocks_.release() > 0) taken = blocks_.take(bytes);
    if (taken.address == 0) return {};
    return {pointer(taken.address), std::move(taken.pending)};
  }

  Arena arena_{make_cuda_pages()};
  CudaBlocks blocks_;
  bool wants_block_ = false;  // what take() is asked for
};

}  // namespace

std::unique_ptr<Pool> make_arena_cuda_pool() { return std::make_unique<ArenaCudaPool>(); }

}  // namespace mica::detail
