// SPDX-License-Identifier: Apache-2.0
#include "mica/device/pool.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "mica/core/error.hpp"
#include "mica/core/half.hpp"
#include "mica/device/block_memory.hpp"

#include "gate.hpp"
#include "support/temporary_folder.hpp"

namespace mica {
namespace {

using namespace std::chrono_literals;
using test::Gate;
using ::testing::HasSubstr;

constexpr auto kActivation = MemoryRole::activation;
constexpr std::int64_t kMiB = 1 << 20;

class PoolTest : public ::testing::TestWithParam<StreamMode> {
 protected:
  std::unique_ptr<Pool> pool = make_cpu_pool();
  std::unique_ptr<Stream> a = make_cpu_stream("a", GetParam());
  std::unique_ptr<Stream> b = make_cpu_stream("b", GetParam());
};
INSTANTIATE_TEST_SUITE_P(Modes, PoolTest, ::testing::Values(StreamMode::inlined, StreamMode::threaded),
                         [](const auto& info) { return info.param == StreamMode::inlined ? "inlined" : "threaded"; });

TEST_P(PoolTest, CountsRequestedBytesExactly) {
  EXPECT_EQ(pool->stats().current, 0);
  EXPECT_EQ(pool->stats().reserved, 0);
  Buffer shard = pool->allocate(1000, MemoryRole::sharded_param, *a);
  Buffer grad = pool->allocate(24, MemoryRole::sharded_grad, *b);
  {
    const Buffer activation = pool->allocate(3'000'001, kActivation, *a);
    EXPECT_EQ(pool->stats().current, 3'001'025);
  }
  const Buffer nothing = pool->allocate(0, kActivation, *a);
  EXPECT_EQ(nothing.data(), nullptr);
  EXPECT_EQ(nothing.bytes(), 0);
  EXPECT_TRUE(nothing);
  EXPECT_EQ(pool->stats().current, 1024);
  EXPECT_EQ(pool->stats().peak, 3'001'025);
  EXPECT_EQ(pool->stats().current_of(MemoryRole::sharded_param), 1000);
  EXPECT_EQ(pool->stats().current_of(MemoryRole::sharded_grad), 24);
  EXPECT_EQ(pool->stats().current_of(kActivation), 0);
  EXPECT_EQ(pool->stats().peak_of(kActivation), 3'000'001);

  grad.reset();
  pool->reset_peak();
  EXPECT_EQ(pool->stats().peak, 1000);
  EXPECT_EQ(pool->stats().peak_of(kActivation), 0);
  EXPECT_EQ(pool->stats().peak_of(MemoryRole::sharded_param), 1000);
  shard.reset();
  shard.reset();  // twice is once
  EXPECT_EQ(pool->stats().current, 0);
  EXPECT_EQ(pool->stats().peak, 1000);
}

TEST_P(PoolTest, BuffersMoveWithoutFreeingTwice) {
  Buffer one = pool->allocate(100, kActivation, *a);
  void* data = one.data();
  Buffer two = std::move(one);
  EXPECT_EQ(two.data(), data);
  EXPECT_EQ(two.role(), kActivation);
  EXPECT_FALSE(one);               // NOLINT(bugprone-use-after-move,clang-analyzer-cplusplus.Move): what is left is an empty buffer
  EXPECT_EQ(one.data(), nullptr);  // NOLINT(clang-analyzer-cplusplus.Move)
  two = pool->allocate(50, kActivation, *a);
  EXPECT_EQ(pool->stats().current, 50);
  Buffer& self = two;
  two = std::move(self);
  EXPECT_EQ(two.bytes(), 50);
  EXPECT_EQ(pool->stats().current, 50);
  two = Buffer();
  EXPECT_EQ(pool->stats().current, 0);
}

TEST_P(PoolTest, ThePeakStaysWhenUseFalls) {
  static_cast<void>(pool->allocate(1000, kActivation, *a));  // given back at once
  const Buffer small = pool->allocate(10, kActivation, *a);
  EXPECT_EQ(pool->stats().current, 10);
  EXPECT_EQ(pool->stats().peak, 1000);
  EXPECT_EQ(pool->stats().peak_of(kActivation), 1000);
  pool->reset_peak();
  EXPECT_EQ(pool->stats().peak, 10);
  EXPECT_EQ(pool->stats().peak_of(kActivation), 10);
}

TEST_P(PoolTest, AlignsTo64Bytes) {
  std::vector<Buffer> buffers;
  for (std::int64_t bytes : {1, 63, 64, 65, 4095, 32768, 32769, 1'000'003}) {
    buffers.push_back(pool->allocate(bytes, kActivation, *a));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffers.back().data()) % 64, 0U) << bytes;
    std::memset(buffers.back().data(), 1, static_cast<std::size_t>(bytes));
  }
}

TEST_P(PoolTest, FreedMemoryIsReusedAndMerged) {
  std::vector<Buffer> parts;
  for (int i = 0; i < 4; ++i) parts.push_back(pool->allocate(kMiB, kActivation, *a));
  void* lowest = parts[0].data();
  const std::int64_t reserved = pool->stats().reserved;
  for (int i : {2, 0, 3, 1}) parts[static_cast<std::size_t>(i)].reset();
  const Buffer whole = pool->allocate(4 * kMiB, kActivation, *a);
  EXPECT_EQ(whole.data(), lowest) << "four neighbours, freed in any order, are one block again";
  EXPECT_EQ(pool->stats().reserved, reserved);
}

TEST_P(PoolTest, PrefersTheBestFit) {
  std::vector<Buffer> kept;
  std::map<std::int64_t, void*> hole;
  for (std::int64_t mib : {4, 2, 3}) {
    Buffer freed = pool->allocate(mib * kMiB, kActivation, *a);
    hole[mib] = freed.data();
    kept.push_back(std::move(freed));
    kept.push_back(pool->allocate(kMiB, kActivation, *a));  // keeps the holes apart
  }
  for (std::size_t i : {0U, 2U, 4U}) kept[i].reset();
  EXPECT_EQ(pool->allocate(2 * kMiB, kActivation, *a).data(), hole[2]);
  EXPECT_EQ(pool->allocate(3 * kMiB - 64, kActivation, *b).data(), hole[3]);
  EXPECT_EQ(pool->allocate(3 * kMiB + 64, kActivation, *a).data(), hole[4]);
}

TEST_P(PoolTest, BestFitLooksAtTheMemoryOfAllStreams) {
  const auto c = make_cpu_stream("c", GetParam());
  std::vector<Buffer> kept;
  std::vector<Buffer> holes;
  const auto hole = [&](std::int64_t mib, Stream& home) {
    holes.push_back(pool->allocate(mib * kMiB, kActivation, home));
    kept.push_back(pool->allocate(kMiB, kActivation, home));
    return holes.back().data();
  };
  void* const tight = hole(2, *b);
  (void)hole(3, *c);
  (void)hole(8, *a);
  holes.clear();
  EXPECT_EQ(pool->allocate(2 * kMiB, kActivation, *a).data(), tight) << "a's own memory would be torn up for it";
}

TEST_P(PoolTest, MemoryWithForeignUsesIsNobodysOwn) {
  std::vector<Buffer> kept;
  Buffer used_by_b = pool->allocate(kMiB, kActivation, *a);
  kept.push_back(pool->allocate(kMiB, kActivation, *a));
  Buffer clean = pool->allocate(kMiB + 4096, kActivation, *a);
  kept.push_back(pool->allocate(kMiB, kActivation, *a));
  void* const clean_data = clean.data();
  used_by_b.used_until(b->record());
  used_by_b.reset();
  clean.reset();
  EXPECT_EQ(pool->allocate(kMiB, kActivation, *a).data(), clean_data);
}

TEST_P(PoolTest, AMergedBlockOfTwoStreamsIsNobodysOwn) {
  for (bool lower_first : {true, false}) {
    pool = make_cpu_pool();
    std::vector<Buffer> kept;
    Buffer lower = pool->allocate(kMiB, kActivation, *a);
    Buffer upper = pool->allocate(kMiB, kActivation, *b);
    kept.push_back(pool->allocate(kMiB, kActivation, *a));
    Buffer clean = pool->allocate(2 * kMiB + 4096, kActivation, *a);
    kept.push_back(pool->allocate(kMiB, kActivation, *a));
    void* const clean_data = clean.data();
    clean.reset();
    (lower_first ? lower : upper).reset();
    (lower_first ? upper : lower).reset();
    EXPECT_EQ(pool->allocate(2 * kMiB, kActivation, *a).data(), clean_data) << lower_first;
    kept.clear();
  }
}

TEST_P(PoolTest, PrefersMemoryOfTheSameStreamAmongNearEquals) {
  std::vector<Buffer> kept;
  Buffer of_b = pool->allocate(kMiB, kActivation, *b);
  kept.push_back(pool->allocate(kMiB, kActivation, *b));
  Buffer of_a = pool->allocate(kMiB + 4096, kActivation, *a);
  kept.push_back(pool->allocate(kMiB, kActivation, *b));
  void* const data_of_a = of_a.data();
  void* const data_of_b = of_b.data();
  of_a.reset();
  of_b.reset();
  EXPECT_EQ(pool->allocate(kMiB, kActivation, *a).data(), data_of_a);
  EXPECT_EQ(pool->allocate(kMiB, kActivation, *b).data(), data_of_b);
}

TEST_P(PoolTest, TheNextOwnerWaitsForTheHomeStream) {
  int* freed = nullptr;
  {
    const Buffer buffer = pool->allocate(kMiB, kActivation, *a);
    freed = static_cast<int*>(buffer.data());
    a->submit("slow", {writes(freed, 4)}, [freed] {
      std::this_thread::sleep_for(5ms);
      *freed = 1;
    });
  }
  const Buffer buffer = pool->allocate(kMiB, kActivation, *b);
  ASSERT_EQ(buffer.data(), freed);
  b->submit("next owner", {writes(freed, 4)}, [freed] { *freed = 2; });
  b->synchronize();
  a->synchronize();
  EXPECT_EQ(*freed, 2);
}

TEST_P(PoolTest, TheNextOwnerWaitsForForeignUses) {
  int* freed = nullptr;
  {
    Buffer buffer = pool->allocate(kMiB, kActivation, *a);
    freed = static_cast<int*>(buffer.data());
    b->submit("slow foreign use", {writes(freed, 4)}, [freed] {
      std::this_thread::sleep_for(5ms);
      *freed = 1;
    });
    buffer.used_until(b->record());
  }
  const Buffer buffer = pool->allocate(kMiB, kActivation, *a);  // the same home: it must wait all the same
  ASSERT_EQ(buffer.data(), freed);
  a->submit("next owner", {writes(freed, 4)}, [freed] { *freed = 2; });
  a->synchronize();
  b->synchronize();
  EXPECT_EQ(*freed, 2);
}

TEST_P(PoolTest, ExhaustionNamesRoleBytesAndUse) {
  pool->set_limit(10'000);
  Buffer held = pool->allocate(6000, MemoryRole::sharded_param, *a);
  const Buffer other = pool->allocate(1000, MemoryRole::optimizer, *a);
  try {
    const Buffer refused = pool->allocate(3001, MemoryRole::unsharded_param, *a);
    FAIL() << "allocated past the limit";
  } catch (const IoError& error) {
    EXPECT_THAT(error.what(), HasSubstr("3001 bytes of unsharded_param wanted"));
    EXPECT_THAT(error.what(), HasSubstr("7000 bytes are in use (sharded_param 6000, optimizer 1000) of at most 10000"));
  }
  EXPECT_EQ(pool->stats().current, 7000);
  EXPECT_EQ(pool->stats().peak, 7000);
  EXPECT_EQ(pool->allocate(3000, kActivation, *a).bytes(), 3000) << "the limit itself is allowed";
  held.reset();
  EXPECT_EQ(pool->allocate(9000, kActivation, *a).bytes(), 9000);
}

TEST_P(PoolTest, RefusesWhatNoMachineHas) {
  EXPECT_THAT(test::error_of<IoError>([&] { (void)pool->allocate(std::int64_t{1} << 60, kActivation, *a); }),
              HasSubstr("bytes of address space: Cannot allocate memory"));
  EXPECT_EQ(pool->allocate(kMiB, kActivation, *a).bytes(), kMiB);
}

// ulimit -v, or a batch system's limit of virtual memory.
TEST_P(PoolTest, LeavesHalfOfALimitedAddressSpaceToOthers) {
  std::int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_AS, &before), 0);
  const rlimit limited{.rlim_cur = static_cast<rlim_t>(pages * ::sysconf(_SC_PAGESIZE) + 1280 * kMiB), .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &limited), 0);
  std::int64_t allocated = 0;
  void* others = MAP_FAILED;
  std::string refused;
  try {
    const Buffer small = pool->allocate(16 * kMiB, kActivation, *a);
    others = ::mmap(nullptr, 600 * kMiB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (others != MAP_FAILED) ::munmap(others, 600 * kMiB);
    const Buffer large = pool->allocate(600 * kMiB, kActivation, *a);  // in another range
    allocated = pool->stats().current;
    (void)pool->allocate(600 * kMiB, kActivation, *a);
  } catch (const IoError& error) {
    refused = error.what();
  }
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &before), 0);
  EXPECT_NE(others, MAP_FAILED);
  EXPECT_EQ(allocated, 616 * kMiB) << refused;
  EXPECT_THAT(refused, HasSubstr("raise `ulimit -v`"));
}

TEST_P(PoolTest, PoisonIsNanInEveryDtype) {
  pool->poison(true);
  for (int round = 0; round < 2; ++round) {  // the second round reuses the memory
    const Buffer buffer = pool->allocate(70, kActivation, *a);
    a->synchronize();
    auto* bytes = static_cast<unsigned char*>(buffer.data());
    for (int i = 0; i < 70; ++i) EXPECT_EQ(bytes[i], 0xff);
    EXPECT_TRUE(std::isnan(static_cast<float*>(buffer.data())[0]));
    EXPECT_TRUE(std::isnan(static_cast<double*>(buffer.data())[0]));
    EXPECT_TRUE(std::isnan(static_cast<float>(static_cast<bf16*>(buffer.data())[0])));
    EXPECT_TRUE(std::isnan(static_cast<float>(static_cast<f16*>(buffer.data())[0])));
    a->submit("clean", {writes(bytes, 70)}, [bytes] { std::memset(bytes, 0, 70); });
  }
}

TEST_P(PoolTest, TrimGivesFreeMemoryBack) {
  Buffer kept = pool->allocate(3 * kMiB, kActivation, *a);
  Buffer freed = pool->allocate(64 * kMiB, kActivation, *a);
  auto* data = static_cast<char*>(freed.data());
  a->submit("write", {writes(data, 64 * kMiB)}, [data] { std::memset(data, 1, 64 * kMiB); });
  auto* kept_data = static_cast<char*>(kept.data());
  a->submit("write", {writes(kept_data, 3 * kMiB)}, [kept_data] { std::memset(kept_data, 2, 3 * kMiB); });
  freed.reset();
  EXPECT_GE(pool->stats().reserved, 67 * kMiB);
  pool->trim();  // must wait for the tasks above
  EXPECT_LE(pool->stats().reserved, 8 * kMiB);
  EXPECT_GE(pool->stats().reserved, 3 * kMiB);
  a->synchronize();
  EXPECT_EQ(kept_data[0], 2);
  EXPECT_EQ(kept_data[3 * kMiB - 1], 2);
  const Buffer again = pool->allocate(64 * kMiB, kActivation, *a);
  EXPECT_EQ(static_cast<char*>(again.data())[32 * kMiB], 0) << "pages that went back come as zeros";
  kept.reset();
  { const Buffer last = std::move(kept); }
}

TEST_P(PoolTest, TrimOfAnEmptyPoolReservesNothing) {
  { const Buffer freed = pool->allocate(64 * kMiB, kActivation, *a); }
  { const Buffer freed = pool->allocate(100, kActivation, *a); }
  { const Buffer freed = pool->allocate(kMiB, MemoryRole::optimizer, *a); }
  EXPECT_GT(pool->stats().reserved, 0);
  pool->trim();
  EXPECT_EQ(pool->stats().reserved, 0);
}

TEST(DryPool, HasAnyAmountOfAddresses) {
  const auto stream = make_cpu_stream("dry", StreamMode::inlined);
  const auto pool = make_dry_pool(DeviceKind::cpu), other = make_dry_pool(DeviceKind::cpu);
  constexpr std::int64_t kTiB = std::int64_t{1} << 40;
  std::vector<Buffer> buffers;
  buffers.push_back(other->allocate(40 * kTiB, kActivation, *stream));
  for (int i = 0; i < 20; ++i) buffers.push_back((i % 2 == 0 ? pool : other)->allocate(kTiB + 64, kActivation, *stream));
  std::vector<char*> begins;
  for (const Buffer& buffer : buffers) begins.push_back(static_cast<char*>(buffer.data()));
  std::ranges::sort(begins);
  for (std::size_t i = 1; i < begins.size(); ++i) EXPECT_GE(begins[i] - begins[i - 1], kTiB + 64) << i;
  EXPECT_EQ(pool->stats().current, 10 * (kTiB + 64));
  EXPECT_EQ(pool->stats().reserved, 10 * kTiB + (2 << 20)) << "in pages of 2 MiB, which neighbours share";
  buffers.clear();
  pool->trim();
  EXPECT_EQ(pool->stats().reserved, 0);
  EXPECT_EQ(pool->stats().reserved_peak, 10 * kTiB + (2 << 20));
}

// A CPU's pool returns free memory before it takes more than it needs at most. A GPU's keeps it.
TEST(DryPool, HasThePagesOfItsDevice) {
  const auto stream = make_cpu_stream("dry", StreamMode::inlined);
  for (const auto& [device, reserved] : {std::pair(DeviceKind::cpu, 112 * kMiB), std::pair(DeviceKind::cuda, 202 * kMiB)}) {
    const auto pool = make_dry_pool(device);
    Buffer first = pool->allocate(100 * kMiB, kActivation, *stream);
    const Buffer kept = pool->allocate(64, kActivation, *stream);
    first.reset();
    const Buffer larger = pool->allocate(101 * kMiB, kActivation, *stream);
    EXPECT_LE(pool->stats().reserved, reserved + 2 * kMiB);
    EXPECT_GE(pool->stats().reserved, reserved - 2 * kMiB);
  }
}

// As tests/gpu/blocks_test.cpp sees them on a GPU.
TEST(DryPool, OfAGpuHasBlocksOfTheirOwn) {
  const auto a = make_cpu_stream("a", StreamMode::inlined);
  const auto pool = make_dry_pool(DeviceKind::cuda);
  auto& blocks = dynamic_cast<BlockMemory&>(*pool);
  Buffer first = blocks.allocate_block(5 * kMiB + 1, kActivation, *a);
  const void* const address = first.data();
  EXPECT_EQ(pool->stats().current, 5 * kMiB + 1);
  EXPECT_EQ(pool->stats().reserved, 6 * kMiB);
  EXPECT_EQ(blocks.block_bytes(address), 6 * kMiB);
  EXPECT_EQ(pool->device_of(static_cast<std::byte*>(first.data()) + 5 * kMiB), DeviceKind::cuda);
  first.reset();
  EXPECT_EQ(pool->stats().reserved, 6 * kMiB) << "it is kept for the next one";
  const Buffer cut = pool->allocate(6 * kMiB, kActivation, *a);
  EXPECT_EQ(blocks.block_bytes(cut.data()), 0) << "other buffers are not cut from blocks";
  EXPECT_EQ(pool->device_of(cut.data()), DeviceKind::cuda);
  const Buffer small = blocks.allocate_block(3 * kMiB, kActivation, *a);
  EXPECT_NE(small.data(), address) << "half of the block would be lost";
  const Buffer near = blocks.allocate_block(11 * kMiB / 2, kActivation, *a), fresh = blocks.allocate_block(11 * kMiB / 2, kActivation, *a);
  EXPECT_EQ(near.data(), address);
  EXPECT_NE(fresh.data(), address);
  EXPECT_EQ(pool->stats().reserved, (6 + 6 + 4 + 6) * kMiB);
  std::vector<Buffer> free;
  for (const std::int64_t mib : {18, 16, 16}) free.push_back(blocks.allocate_block(mib * kMiB, kActivation, *a));
  const void* const oldest_of_the_shortest = free[1].data();
  free.clear();
  EXPECT_EQ(blocks.allocate_block(16 * kMiB, kActivation, *a).data(), oldest_of_the_shortest);
  int on_host = 0;
  EXPECT_EQ(pool->device_of(&on_host), DeviceKind::cpu);
  EXPECT_EQ(dynamic_cast<BlockMemory*>(make_dry_pool(DeviceKind::cpu).get()), nullptr);
}

TEST_P(PoolTest, BuffersThatTasksOwnComeBackSafely) {
  constexpr int kRounds = 200;
  for (int i = 0; i < kRounds; ++i) {
    auto buffer = std::make_shared<Buffer>(pool->allocate(1000 + i, kActivation, *a));
    a->submit("owns", {}, [buffer] { std::memset(buffer->data(), 1, 1000); });
    buffer.reset();
    const Buffer other = pool->allocate(50, MemoryRole::workspace, *b);
  }
  a->synchronize();
  EXPECT_EQ(pool->stats().current, 0);
}

TEST_P(PoolTest, ItsEndWaitsForUsesOfFreedMemory) {
  {
    const Buffer buffer = pool->allocate(kMiB, kActivation, *a);
    auto* data = static_cast<char*>(buffer.data());
    a->submit("slow", {writes(data, kMiB)}, [data] {
      std::this_thread::sleep_for(5ms);
      std::memset(data, 1, kMiB);
    });
  }
  pool.reset();
  a->synchronize();
}

TEST_P(PoolTest, AdoptedMemoryIsCountedAndLetGoAfterItsLastUse) {
  std::vector<float> memory(10, 1.0F);
  auto owner = std::make_shared<int>(0);
  const std::weak_ptr<int> is_held = owner;
  Gate gate;
  const Buffer other = pool->allocate(100, MemoryRole::sharded_param, *a);
  const std::int64_t reserved = pool->stats().reserved;
  Buffer adopted = pool->adopt(memory.data(), 40, MemoryRole::sharded_param, *a, std::move(owner));
  EXPECT_EQ(adopted.data(), memory.data());
  EXPECT_EQ(pool->stats().current_of(MemoryRole::sharded_param), 140);
  EXPECT_EQ(pool->stats().peak, 140);
  EXPECT_EQ(pool->stats().reserved, reserved + 40);
  const bool is_threaded = GetParam() == StreamMode::threaded;
  if (is_threaded) b->submit("use", {}, [&] { gate.pass(); });
  adopted.used_until(b->record());
  Buffer moved = std::move(adopted);
  moved.reset();
  EXPECT_EQ(pool->stats().current, 100) << "counts follow the host";
  EXPECT_EQ(is_held.expired(), !is_threaded) << "b is not done with it";
  gate.open();
  b->synchronize();
  EXPECT_EQ(pool->stats().reserved, reserved);
  EXPECT_TRUE(is_held.expired());
  EXPECT_EQ(memory, std::vector<float>(10, 1.0F)) << "it was never the pool's to hand out";
}

TEST_P(PoolTest, AdoptedMemoryIsPoisonedAndLimited) {
  std::vector<float> memory(2, 1.0F);
  pool->poison(true);
  pool->set_limit(8);
  const Buffer adopted = pool->adopt(memory.data(), 8, MemoryRole::sharded_param, *a, std::make_shared<int>(0));
  a->synchronize();
  EXPECT_TRUE(std::isnan(memory[0]) && std::isnan(memory[1]));
  EXPECT_THROW(static_cast<void>(pool->adopt(memory.data(), 1, MemoryRole::sharded_param, *a, std::make_shared<int>(0))), IoError);
  EXPECT_EQ(pool->stats().current, 8);
}

TEST_P(PoolTest, ItsEndWaitsForUsesOfAdoptedMemory) {
  auto owner = std::make_shared<int>(0);
  const std::weak_ptr<int> is_held = owner;
  bool is_held_in_task = false;
  Buffer adopted = pool->adopt(owner.get(), 4, kActivation, *a, owner);
  owner.reset();
  a->submit("use", {}, [&] {
    std::this_thread::sleep_for(20ms);
    is_held_in_task = !is_held.expired();
  });
  adopted.reset();
  pool.reset();
  EXPECT_TRUE(is_held_in_task);
  EXPECT_TRUE(is_held.expired());
}

TEST(PoolOverlap, MergedBlocksCauseNoNeedlessWaits) {
  const auto pool = make_cpu_pool();
  const auto a = make_cpu_stream("a", StreamMode::threaded);
  const auto slow = make_cpu_stream("slow", StreamMode::threaded);
  Gate gate;
  Buffer low = pool->allocate(kMiB, kActivation, *a);
  Buffer high = pool->allocate(kMiB, kActivation, *slow);
  Buffer top = pool->allocate(kMiB, kActivation, *a);
  void* const low_data = low.data();
  slow->submit("held", {}, [&] { gate.pass(); });
  low.reset();
  high.reset();  // one free block now, with the wilderness above once top goes
  top.reset();
  const Buffer again = pool->allocate(kMiB, kActivation, *a);
  ASSERT_EQ(again.data(), low_data);
  a->submit("runs", {}, [] {});
  a->synchronize();  // would hang if it waited for the neighbour's user
  const Buffer next = pool->allocate(kMiB, kActivation, *a);
  a->submit("waits", {}, [] {});
  const Event waits = a->record();
  std::this_thread::sleep_for(2ms);
  EXPECT_FALSE(waits.is_complete()) << "this one got the memory that the held task may use";
  gate.open();
  a->synchronize();
}

}  // namespace
}  // namespace mica
