// SPDX-License-Identifier: Apache-2.0
// Streams, events and memory of a GPU. The same sources run on a GPU (label gpu) and on the emulation of one.
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <vector>

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "mica/core/error.hpp"
#include "mica/device/cuda/check.hpp"
#include "mica/device/gpu.hpp"
#include "mica/device/tracer.hpp"

#include "testing/checking_stream.hpp"

namespace mica::testing {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

class GpuDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_FALSE(list_gpus().empty()) << why_no_gpu();
    use_gpu(0);
    pool_ = make_cuda_pool();
    pinned_ = make_pinned_pool();
    a_ = make_cuda_stream("a");
    b_ = make_cuda_stream("b");
  }

  static void enqueue_copy(Stream& s, void* to, const void* from, std::int64_t bytes) {
    s.submit("copy", {reads(from, bytes), writes(to, bytes)}, [=, stream = cuda::native(s)] {
      cuda::check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDefault, stream), "cudaMemcpyAsync");
    });
  }

  static void enqueue_fill(Stream& s, void* to, std::int64_t bytes, int byte) {
    s.submit("fill", {writes(to, bytes)}, [=, stream = cuda::native(s)] {
      cuda::check(cudaMemsetAsync(to, byte, static_cast<std::size_t>(bytes), stream), "cudaMemsetAsync");
    });
  }

  std::unique_ptr<Pool> pool_, pinned_;
  std::unique_ptr<Stream> a_, b_;
};

TEST_F(GpuDevice, TellsItsGpus) {
  const std::vector<GpuInfo> gpus = list_gpus();
  EXPECT_TRUE(has_cuda());
  EXPECT_EQ(why_no_gpu(), "");
  for (const GpuInfo& gpu : gpus) {
    EXPECT_FALSE(gpu.name.empty());
    EXPECT_FALSE(gpu.pci_bus_id.empty());
    EXPECT_GE(gpu.compute_major, 7);
    EXPECT_GT(gpu.memory_bytes, 100 * kMiB);
  }
  EXPECT_THROW(use_gpu(static_cast<int>(gpus.size())), ConfigError);
  EXPECT_THROW(use_gpu(-1), ConfigError);
}

TEST_F(GpuDevice, MemoryGoesThereAndBack) {
  constexpr std::int64_t kNumel = 100'003;
  std::vector<float> values(kNumel), back(kNumel, -1);
  std::iota(values.begin(), values.end(), 1.0F);
  const std::int64_t bytes = kNumel * 4;
  const Buffer device = pool_->allocate(bytes, MemoryRole::activation, *a_);
  const Buffer host = pinned_->allocate(bytes, MemoryRole::workspace, *a_);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(device.data()) % 256, 0U);
  std::memcpy(host.data(), values.data(), static_cast<std::size_t>(bytes));
  enqueue_copy(*a_, device.data(), host.data(), bytes);
  a_->synchronize();
  pool_->copy(back.data(), device.data(), bytes);
  EXPECT_EQ(back, values);
  EXPECT_EQ(pool_->device(), DeviceKind::cuda);
  EXPECT_EQ(pool_->device_of(device.data()), DeviceKind::cuda);
  EXPECT_EQ(pool_->device_of(host.data()), DeviceKind::cpu);
  EXPECT_EQ(pool_->device_of(values.data()), DeviceKind::cpu);
}

TEST_F(GpuDevice, PoolCountsExactlyAndUsesMemoryAgain) {
  Buffer first = pool_->allocate(3 * kMiB + 1, MemoryRole::activation, *a_);
  const Buffer second = pool_->allocate(1000, MemoryRole::sharded_param, *a_);
  EXPECT_EQ(pool_->stats().current, 3 * kMiB + 1001);
  EXPECT_EQ(pool_->stats().current_of(MemoryRole::sharded_param), 1000);
  const void* address = first.data();
  first.reset();
  EXPECT_EQ(pool_->stats().current, 1000);
  EXPECT_EQ(pool_->stats().peak, 3 * kMiB + 1001);
  const std::int64_t reserved = pool_->stats().reserved;
  const Buffer again = pool_->allocate(3 * kMiB, MemoryRole::activation, *a_);
  EXPECT_EQ(again.data(), address);
  EXPECT_EQ(pool_->stats().reserved, reserved);
}

TEST_F(GpuDevice, FreeMemoryGoesBackToTheDriver) {
  { const Buffer large = pool_->allocate(64 * kMiB, MemoryRole::activation, *a_); }
  EXPECT_GE(pool_->stats().reserved, 64 * kMiB);
  pool_->trim();
  EXPECT_EQ(pool_->stats().reserved, 0);
  const Buffer again = pool_->allocate(64 * kMiB, MemoryRole::activation, *a_);
  std::vector<char> byte(1, 'x');
  pool_->copy(static_cast<std::byte*>(again.data()) + 64 * kMiB - 1, byte.data(), 1);
}

TEST_F(GpuDevice, ExhaustedMemoryIsAnErrorAndThePoolStaysUsable) {
  const std::int64_t too_much = list_gpus()[0].memory_bytes + kMiB;
  try {
    const Buffer buffer = pool_->allocate(too_much, MemoryRole::activation, *a_);
    FAIL() << "more memory than the GPU has";
  } catch (const IoError& e) {
    EXPECT_NE(std::string(e.what()).find("memory exhausted"), std::string::npos) << e.what();
  }
  const Buffer buffer = pool_->allocate(kMiB, MemoryRole::activation, *a_);
  EXPECT_NE(buffer.data(), nullptr);
}

TEST_F(GpuDevice, FragmentsServeALargerBlock) {
  // Half of the memory in two holes that are no neighbours: one range of addresses, whatever pages are behind it.
  const std::int64_t quarter = list_gpus()[0].memory_bytes / 4 / kMiB * kMiB;
  Buffer first = pool_->allocate(quarter, MemoryRole::activation, *a_);
  const Buffer between = pool_->allocate(kMiB, MemoryRole::activation, *a_);
  Buffer second = pool_->allocate(quarter, MemoryRole::activation, *a_);
  const Buffer behind = pool_->allocate(kMiB, MemoryRole::activation, *a_);
  first.reset();
  second.reset();
  const Buffer whole = pool_->allocate(3 * quarter, MemoryRole::activation, *a_);
  EXPECT_NE(whole.data(), nullptr);
}

TEST_F(GpuDevice, FreshMemoryIsPoisoned) {
  {
    const Buffer before = pool_->allocate(400, MemoryRole::activation, *a_);
    enqueue_fill(*a_, before.data(), 400, 0);
  }
  pool_->poison(true);
  const Buffer buffer = pool_->allocate(400, MemoryRole::activation, *a_);
  a_->synchronize();
  std::vector<float> values(100, 0.0F);
  pool_->copy(values.data(), buffer.data(), 400);
  for (const float value : values) EXPECT_TRUE(std::isnan(value));
}

TEST_F(GpuDevice, PrefersMemoryOfTheSameStreamAmongNearEquals) {
  std::vector<Buffer> kept;
  Buffer of_b = pool_->allocate(kMiB, MemoryRole::activation, *b_);
  kept.push_back(pool_->allocate(kMiB, MemoryRole::activation, *b_));
  Buffer of_a = pool_->allocate(kMiB + 4096, MemoryRole::activation, *a_);
  kept.push_back(pool_->allocate(kMiB, MemoryRole::activation, *b_));
  const void* data_of_a = of_a.data();
  of_a.reset();
  of_b.reset();
  EXPECT_EQ(pool_->allocate(kMiB, MemoryRole::activation, *a_).data(), data_of_a);
}

TEST_F(GpuDevice, TheNextOwnerComesAfterTheLastUse) {
  for (Pool* pool : {pool_.get(), pinned_.get()}) {
    for (int round = 0; round < 20; ++round) {
      const void* used = nullptr;
      {
        Buffer buffer = pool->allocate(kMiB, MemoryRole::communication, *a_);
        used = buffer.data();
        enqueue_fill(*a_, buffer.data(), kMiB, 1);
        if (round % 2 == 1) {  // by another stream than its own
          b_->wait(a_->record());
          enqueue_fill(*b_, buffer.data(), kMiB, 2);
          buffer.used_until(b_->record());
        }
      }
      Stream& next = round % 2 == 1 ? *a_ : *b_;
      const Buffer buffer = pool->allocate(kMiB, MemoryRole::communication, next);
      ASSERT_EQ(buffer.data(), used);
      enqueue_fill(next, buffer.data(), kMiB, 3);
      a_->synchronize();
      b_->synchronize();
      char byte = 0;
      pool_->copy(&byte, buffer.data(), 1);
      ASSERT_EQ(byte, 3) << "round " << round;
    }
  }
}

TEST_F(GpuDevice, PinnedMemoryIsKeptForReuse) {
  Buffer first = pinned_->allocate(10'000, MemoryRole::communication, *a_);
  const void* address = first.data();
  first.reset();
  const Buffer second = pinned_->allocate(9'000, MemoryRole::communication, *b_);
  EXPECT_EQ(second.data(), address);
  EXPECT_EQ(pinned_->stats().reserved, 10'000);
  EXPECT_EQ(pinned_->stats().current, 9'000);
}

TEST_F(GpuDevice, APlainPoolAsksTheDriverForEveryBuffer) {
  ::setenv("MICA_GPU_POOL", "plain", 1);
  const auto plain = make_cuda_pool();
  ::setenv("MICA_GPU_POOL", "plian", 1);
  EXPECT_THROW((void)make_cuda_pool(), ConfigError);
  ::unsetenv("MICA_GPU_POOL");
  EXPECT_EQ(gpu_pool_kind(), GpuPoolKind::arena);

  Buffer first = plain->allocate(1001, MemoryRole::activation, *a_);
  const Buffer second = plain->allocate(3 * kMiB, MemoryRole::sharded_param, *a_);
  EXPECT_EQ(plain->stats().current, 3 * kMiB + 1001);
  EXPECT_EQ(plain->stats().reserved, 3 * kMiB + 1001);
  EXPECT_EQ(plain->device(), DeviceKind::cuda);
  EXPECT_EQ(plain->device_of(first.data()), DeviceKind::cuda);
  void* const data = first.data();
  enqueue_fill(*b_, data, 1001, 1);
  first.used_until(b_->record());
  first.reset();
  EXPECT_EQ(plain->stats().current, 3 * kMiB);
  EXPECT_EQ(plain->stats().peak, 3 * kMiB + 1001);
  const Buffer third = plain->allocate(1001, MemoryRole::activation, *a_);
  EXPECT_NE(third.data(), data) << "a block is used once";
  EXPECT_EQ(plain->stats().reserved, 3 * kMiB + 2 * 1001);
  plain->trim();  // which waits
  EXPECT_EQ(plain->stats().reserved, 3 * kMiB + 1001);
  EXPECT_THROW((void)plain->allocate(list_gpus()[0].memory_bytes, MemoryRole::activation, *a_), IoError);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  for (int i = 0; i < 3; ++i) {  // freed memory serves when the driver has no more
    const Buffer half = plain->allocate(list_gpus()[0].memory_bytes / 2, MemoryRole::activation, *a_);
    EXPECT_NE(half.data(), nullptr);
  }
  plain->trim();
  plain->poison(true);
  const Buffer poisoned = plain->allocate(4, MemoryRole::activation, *a_);
  EXPECT_EQ(plain->stats().reserved, 3 * kMiB + 1001 + 4);
  a_->synchronize();
  float value = 0;
  plain->copy(&value, poisoned.data(), 4);
  EXPECT_TRUE(std::isnan(value));
}

struct TaskFailed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

TEST_F(GpuDevice, AnErrorIsStickyAndPassesToStreamsThatWait) {
  a_->submit("good", {}, [] {});
  const Event before = a_->record();
  a_->submit("bad", {}, [] { throw TaskFailed("task 2"); });
  bool ran = false;
  a_->submit("later", {}, [&] { ran = true; });
  b_->wait(a_->record());
  EXPECT_THROW(a_->synchronize(), TaskFailed);
  EXPECT_THROW(b_->synchronize(), TaskFailed);
  EXPECT_THROW(a_->record().wait_on_host(), TaskFailed);
  EXPECT_NO_THROW(before.wait_on_host());
  EXPECT_FALSE(ran);
  Stream* const streams[] = {a_.get(), b_.get()};
  drain_and_clear_errors(streams);
  a_->submit("again", {}, [&] { ran = true; });
  a_->synchronize();
  EXPECT_TRUE(ran);
}

TEST_F(GpuDevice, WhatFailsElsewhereIsTheStreamsError) {
  a_->fail(std::make_exception_ptr(TaskFailed("elsewhere")));
  EXPECT_THROW(a_->synchronize(), TaskFailed);
  a_->drain_and_clear_error();
  EXPECT_NO_THROW(a_->synchronize());
}

TEST_F(GpuDevice, ADriversErrorNamesCallPlaceAndGpu) {
  a_->submit("bad copy", {}, [stream = cuda::native(*a_)] { cuda::check(cudaMemsetAsync(nullptr, 0, 4, stream), "cudaMemsetAsync"); });
  try {
    a_->synchronize();
    FAIL() << "memory at address 0";
  } catch (const CudaError& e) {
    const std::string text = e.what();
    for (const char* part : {"cudaMemsetAsync: ", "(cudaErrorInvalidValue)", "device_test.cpp:", "GPU 0"}) {
      EXPECT_NE(text.find(part), std::string::npos) << text;
    }
  }
  static_cast<void>(cudaGetLastError());
}

TEST_F(GpuDevice, StreamsOfBothDevicesWaitForEachOther) {
  const auto cpu = make_cpu_stream("cpu", StreamMode::threaded);
  const Buffer device = pool_->allocate(4, MemoryRole::activation, *a_);
  const Buffer host = pinned_->allocate(8, MemoryRole::workspace, *a_);
  auto* numbers = static_cast<std::int32_t*>(host.data());
  numbers[0] = 41;
  numbers[1] = 0;
  enqueue_copy(*a_, device.data(), &numbers[0], 4);
  cpu->wait(a_->record());
  cpu->submit("add", {}, [numbers] { ++numbers[0]; });
  a_->wait(cpu->record());
  enqueue_copy(*a_, device.data(), &numbers[0], 4);
  enqueue_copy(*a_, &numbers[1], device.data(), 4);
  a_->synchronize();
  EXPECT_EQ(numbers[1], 42);
}

TEST_F(GpuDevice, StreamsAndTheHostWaitForEvents) {
  const Buffer device = pool_->allocate(kMiB, MemoryRole::activation, *a_);
  const Buffer host = pinned_->allocate(kMiB, MemoryRole::workspace, *a_);
  auto* bytes = static_cast<char*>(host.data());
  for (char value = 1; value <= 20; ++value) {
    enqueue_fill(*a_, device.data(), kMiB, value);
    b_->wait(a_->record());
    enqueue_copy(*b_, host.data(), device.data(), kMiB);
    const Event copied = b_->record();
    copied.wait_on_host();
    EXPECT_TRUE(copied.is_complete());
    ASSERT_EQ(bytes[0], value);
    ASSERT_EQ(bytes[kMiB - 1], value);
    a_->wait(copied);
  }
}

TEST_F(GpuDevice, AMissingWaitIsFound) {
  for (const bool waits : {true, false}) {
    HappensBeforeChecker checker;
    const auto a = checker.wrap(make_cuda_stream("a")), b = checker.wrap(make_cuda_stream("b"));
    Buffer device = pool_->allocate(64, MemoryRole::activation, *a);
    const Buffer host = pinned_->allocate(64, MemoryRole::workspace, *a);
    enqueue_copy(*a, device.data(), host.data(), 64);
    if (waits) b->wait(a->record());
    enqueue_copy(*b, host.data(), device.data(), 64);
    device.used_until(b->record());
    b->synchronize();
    EXPECT_EQ(checker.violations().empty(), waits);
  }
}

TEST_F(GpuDevice, TracesHaveTheStreamsTimes) {
  Tracer tracer(3);
  const auto traced = tracer.wrap(make_cuda_stream("copies"));
  const Buffer device = pool_->allocate(kMiB, MemoryRole::activation, *traced);
  const Buffer host = pinned_->allocate(kMiB, MemoryRole::workspace, *traced);
  tracer.start();
  traced->begin_range("h.3", "forward");
  traced->annotate("h.3", kMiB);
  enqueue_copy(*traced, device.data(), host.data(), kMiB);
  traced->end_range();
  tracer.stop();
  const std::string json = tracer.to_json();
  for (const char* part : {"\"copies\"", "\"copy h.3\"", "\"h.3 forward\"", "\"bytes\":1048576", "\"pid\":3"}) {
    EXPECT_NE(json.find(part), std::string::npos) << part << " in " << json;
  }
  EXPECT_EQ(json.find("\"dur\":0.000"), std::string::npos) << "a copy takes time: " << json;
}

}  // namespace
}  // namespace mica::testing
