// SPDX-License-Identifier: Apache-2.0
#include "dry_gpu_pool.hpp"

#include "cuda/cuda_pages.hpp"
#include "dry_pages.hpp"
#include "own_blocks.hpp"

namespace mica::detail {
namespace {

constexpr std::int64_t kPlenty = std::int64_t{1} << 51;  // 2 PiB, for plans that fit no GPU either
constexpr std::int64_t kGranularity = std::int64_t{2} << 20;

class DryBlocks final : public OwnBlocks {
 public:
  DryBlocks() = default;
  ~DryBlocks() override { close_all(); }
  DryBlocks(const DryBlocks&) = delete;
  DryBlocks& operator=(const DryBlocks&) = delete;

 private:
  [[nodiscard]] std::int64_t granularity() const override { return kGranularity; }
  // No other pages get the same addresses.
  [[nodiscard]] std::uintptr_t make(std::int64_t bytes) override { return make_dry_pages(bytes, kCudaMallocAlignment)->begin(); }
  void free(std::uintptr_t /*address*/, std::int64_t /*bytes*/) override {}
};

class DryGpuPool final : public WithOwnBlocks<Pool> {
 public:
  DryGpuPool() : WithOwnBlocks(make_dry_pages(kPlenty, kCudaMallocAlignment), std::make_unique<DryBlocks>()) {}
  [[nodiscard]] DeviceKind device() const override { return DeviceKind::cuda; }
  [[nodiscard]] DeviceKind device_of(const void* data) const override {
    return arena().contains(number(data)) || blocks().contains(number(data)) ? DeviceKind::cuda : DeviceKind::cpu;
  }
};

}  // namespace

std::unique_ptr<Pool> make_dry_gpu_pool() { return std::make_unique<DryGpuPool>(); }

}  // namespace mica::detail
