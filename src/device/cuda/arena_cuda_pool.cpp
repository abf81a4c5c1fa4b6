// SPDX-License-Identifier: Apache-2.0
#include "../own_blocks.hpp"
#include "cuda_blocks.hpp"
#include "cuda_pages.hpp"
#include "cuda_pool.hpp"

namespace mica::detail {
namespace {

/// The pool keeps the memory that it has, since taking it from the driver and returning it blocks the host (and may stall the
/// device).
class ArenaCudaPool final : public WithOwnBlocks<CudaPool> {
 public:
  ArenaCudaPool() : WithOwnBlocks(make_cuda_pages(), std::make_unique<CudaBlocks>()) {}

  [[nodiscard]] DeviceKind device_of(const void* data) const override {
    return arena().contains(number(data)) ? DeviceKind::cuda : CudaPool::device_of(data);
  }

 protected:
  Taken take(std::int64_t bytes, Stream& home) override {
    stay_on_gpu();
    return WithOwnBlocks::take(bytes, home);
  }
  void release_free_memory() override {
    stay_on_gpu();
    WithOwnBlocks::release_free_memory();
  }
};

}  // namespace

std::unique_ptr<Pool> make_arena_cuda_pool() { return std::make_unique<ArenaCudaPool>(); }

}  // namespace mica::detail
