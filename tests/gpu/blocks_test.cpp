// SPDX-License-Identifier: Apache-2.0
// Blocks of a GPU's memory that share their pages with nobody.
#include <cstdint>
#include <vector>

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "mica/core/error.hpp"
#include "mica/device/block_memory.hpp"
#include "mica/device/cuda/check.hpp"
#include "mica/device/gpu.hpp"

namespace mica::testing {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

class GpuBlocks : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_FALSE(list_gpus().empty()) << why_no_gpu();
    ASSERT_NE(gpu_pool_kind(), GpuPoolKind::plain) << "MICA_GPU_POOL=plain has no blocks of their own: unset it for this test";
    use_gpu(0);
    pool_ = make_cuda_pool();
    a_ = make_cuda_stream("a");
    b_ = make_cuda_stream("b");
  }
  [[nodiscard]] BlockMemory& blocks() const { return dynamic_cast<BlockMemory&>(*pool_); }
  [[nodiscard]] Buffer block(std::int64_t bytes) const { return blocks().allocate_block(bytes, MemoryRole::unsharded_param, *a_); }

  std::unique_ptr<Pool> pool_;
  std::unique_ptr<Stream> a_, b_;
};

struct Forgotten final : BlockUser {
  void forget_block(const void* begin) noexcept override { blocks.push_back(begin); }
  std::vector<const void*> blocks;
};

TEST_F(GpuBlocks, AreCountedExactlyAndUsedAgainByWhatFits) {
  Buffer first = block(5 * kMiB + 1);
  EXPECT_EQ(pool_->stats().current, 5 * kMiB + 1);
  EXPECT_EQ(pool_->stats().current_of(MemoryRole::unsharded_param), 5 * kMiB + 1);
  EXPECT_EQ(pool_->stats().reserved, 6 * kMiB);
  EXPECT_EQ(blocks().block_bytes(first.data()), 6 * kMiB);
  EXPECT_EQ(blocks().block_bytes(static_cast<std::byte*>(first.data()) + 1), 0);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first.data()) % (2 * kMiB), 0U);
  EXPECT_EQ(pool_->device_of(first.data()), DeviceKind::cuda);
  // All of it is there.
  std::vector<char> there(static_cast<std::size_t>(first.bytes()), 'x'), back(there.size());
  pool_->copy(first.data(), there.data(), first.bytes());
  pool_->copy(back.data(), first.data(), first.bytes());
  EXPECT_EQ(back, there);

  const void* const address = first.data();
  first.reset();
  EXPECT_EQ(pool_->stats().current, 0);
  const Buffer cut = pool_->allocate(kMiB, MemoryRole::activation, *a_);
  EXPECT_EQ(blocks().block_bytes(cut.data()), 0) << "other buffers are not cut from blocks";
  const Buffer small = block(3 * kMiB);
  EXPECT_NE(small.data(), address) << "half of the block would be lost";
  const Buffer near = block(11 * kMiB / 2), fresh = block(11 * kMiB / 2);
  EXPECT_EQ(near.data(), address);
  EXPECT_NE(fresh.data(), address);
}

TEST_F(GpuBlocks, GoWithAWordToTheirUsers) {
  const auto user = std::make_shared<Forgotten>();
  blocks().add_block_user(user);
  blocks().add_block_user(std::make_shared<Forgotten>());  // gone by then
  Buffer kept = block(kMiB), given_back = block(4 * kMiB);
  const void* const gone = given_back.data();
  const void* const last = kept.data();
  given_back.reset();
  EXPECT_TRUE(user->blocks.empty()) << "it is kept for the next one";
  pool_->trim();
  EXPECT_EQ(user->blocks, std::vector<const void*>{gone});
  EXPECT_EQ(pool_->stats().reserved, 2 * kMiB);
  kept.reset();
  pool_.reset();
  EXPECT_EQ(user->blocks, (std::vector<const void*>{gone, last}));
}

TEST_F(GpuBlocks, AndPagesGiveMemoryToEachOther) {
  const std::int64_t most = list_gpus()[0].memory_bytes / 4 * 3 / kMiB * kMiB;
  { const Buffer as_block = block(most); }
  { const Buffer as_pages = pool_->allocate(most, MemoryRole::activation, *a_); }
  const Buffer again = block(most);
  EXPECT_NE(again.data(), nullptr);
  EXPECT_THROW(static_cast<void>(block(most)), IoError);
  EXPECT_THROW(static_cast<void>(pool_->allocate(most, MemoryRole::activation, *a_)), IoError);
}

TEST_F(GpuBlocks, ANewOwnerWaitsForTheLastUse) {
  const auto fill = [](Stream& s, void* data, int value) {
    s.submit("fill", {writes(data, 2 * kMiB)}, [=, stream = cuda::native(s)] {
      cuda::check(cudaMemsetAsync(data, value, static_cast<std::size_t>(2 * kMiB), stream), "cudaMemsetAsync");
    });
  };
  Buffer first = block(2 * kMiB);
  const void* const address = first.data();
  fill(*b_, first.data(), 1);
  first.used_until(b_->record());
  first.reset();
  const Buffer second = block(2 * kMiB);
  EXPECT_EQ(second.data(), address);
  fill(*a_, second.data(), 2);
  a_->synchronize();
  b_->synchronize();
  std::vector<char> values(static_cast<std::size_t>(2 * kMiB));
  pool_->copy(values.data(), second.data(), 2 * kMiB);
  EXPECT_EQ(values, std::vector<char>(values.size(), 2));
}

}  // namespace
}  // namespace mica::testing
