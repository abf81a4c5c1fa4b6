// SPDX-License-Identifier: Apache-2.0
// Streams that work as late as can be: what lacks a wait shows, and what has its waits is right in every order.
#include <chrono>
#include <set>
#include <thread>
#include <vector>

#include <cuda.h>
#include <cuda_runtime.h>
#include <gtest/gtest.h>
#include <nccl.h>

#include "cuda_emulation.hpp"
#include "device_array.hpp"

namespace mica::cuda_emulation {
namespace {

constexpr int kSeeds = 20;

class Late : public ::testing::Test {
 protected:
  Late() {
    work_late(1);
    for (auto* stream : {&first_, &second_}) EXPECT_EQ(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking), cudaSuccess);
    EXPECT_EQ(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), cudaSuccess);
  }
  ~Late() override {
    for (auto* stream : {first_, second_}) {
      EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
      EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
    }
    EXPECT_EQ(cudaEventDestroy(event_), cudaSuccess);
    work_late(0);
  }
  void synchronize() const {
    for (auto* stream : {first_, second_}) ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  }

  cudaStream_t first_ = nullptr, second_ = nullptr;
  cudaEvent_t event_ = nullptr;
};

__global__ void add(int* out, const int* in, int count) {
  for (int i = 0; i < count; ++i) out[i] += in[i];
}

void launch_add(cudaStream_t stream, int* out, const int* in, int count) {
  cudaLaunchConfig_t config{};
  config.stream = stream;
  ASSERT_EQ(cudaLaunchKernelEx(&config, add, out, in, count), cudaSuccess);
}

TEST_F(Late, NothingIsDoneBeforeSomebodyWaits) {
  int* pinned = nullptr;
  ASSERT_EQ(cudaHostAlloc(&pinned, 4, cudaHostAllocDefault), cudaSuccess);
  *pinned = 7;
  const DeviceArray<int> device({1});
  ASSERT_EQ(cudaMemcpyAsync(pinned, device.data(), 4, cudaMemcpyDeviceToHost, first_), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(event_, first_), cudaSuccess);
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  EXPECT_EQ(*pinned, 7);
  ASSERT_EQ(cudaEventSynchronize(event_), cudaSuccess);
  EXPECT_EQ(*pinned, 1);
  EXPECT_EQ(cudaFreeHost(pinned), cudaSuccess);
}

TEST_F(Late, PageableMemoryIsReadInTheCall) {
  std::vector<int> host{5};
  const DeviceArray<int> device({1});
  ASSERT_EQ(cudaMemcpyAsync(device.data(), host.data(), 4, cudaMemcpyHostToDevice, first_), cudaSuccess);
  host[0] = 6;
  ASSERT_EQ(cudaMemcpyAsync(host.data(), device.data(), 4, cudaMemcpyDeviceToHost, first_), cudaSuccess);
  EXPECT_EQ(host[0], 5);  // for what goes there the call waits
}

TEST_F(Late, AMissingWaitShows) {
  std::set<int> without, with;
  for (int seed = 1; seed <= kSeeds; ++seed) {
    synchronize();
    work_late(static_cast<std::uint64_t>(seed));
    for (const bool waits : {false, true}) {
      const DeviceArray<int> sum({0}), one({1}), ten({10});
      launch_add(first_, one.data(), ten.data(), 1);
      ASSERT_EQ(cudaEventRecord(event_, first_), cudaSuccess);
      if (waits) {
        ASSERT_EQ(cudaStreamWaitEvent(second_, event_, 0), cudaSuccess);
      }
      launch_add(second_, sum.data(), one.data(), 1);
      synchronize();
      (waits ? with : without).insert(sum.host()[0]);
    }
  }
  EXPECT_EQ(with, std::set<int>{11});
  EXPECT_EQ(without, (std::set<int>{1, 11}));
}

TEST_F(Late, AWaitIsForWhatWasRecordedThen) {
  const DeviceArray<int> sum({0}), one({1});
  ASSERT_EQ(cudaEventRecord(event_, first_), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(second_, event_, 0), cudaSuccess);
  // The first stream now waits for the second: with what is recorded from here on they would wait for each other.
  cudaEvent_t back = nullptr;
  ASSERT_EQ(cudaEventCreateWithFlags(&back, cudaEventDisableTiming), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(back, second_), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(first_, back, 0), cudaSuccess);
  launch_add(first_, sum.data(), one.data(), 1);
  ASSERT_EQ(cudaEventRecord(event_, first_), cudaSuccess);
  ASSERT_EQ(cudaEventDestroy(back), cudaSuccess);  // the wait stands
  ASSERT_EQ(cudaEventSynchronize(event_), cudaSuccess);
  EXPECT_EQ(sum.host()[0], 1);
}

TEST_F(Late, AskingLetsWorkGoOn) {
  const DeviceArray<int> sum({0}), one({1});
  launch_add(first_, sum.data(), one.data(), 1);
  int asked = 0;
  while (cudaStreamQuery(first_) == cudaErrorNotReady) ++asked;
  EXPECT_EQ(asked, 0);  // one piece a question
  launch_add(first_, sum.data(), one.data(), 1);
  launch_add(first_, sum.data(), one.data(), 1);
  EXPECT_EQ(cudaStreamQuery(first_), cudaErrorNotReady);
  EXPECT_EQ(cudaStreamQuery(first_), cudaSuccess);
  EXPECT_EQ(sum.host()[0], 3);
}

TEST_F(Late, ADestroyedStreamDoesWhatItHas) {
  const DeviceArray<int> sum({0}), one({1});
  cudaStream_t third = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&third, cudaStreamNonBlocking), cudaSuccess);
  launch_add(third, sum.data(), one.data(), 1);
  ASSERT_EQ(cudaStreamDestroy(third), cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(sum.host()[0], 1);
}

TEST_F(Late, ACollectiveHappensWhenAllStreamsHaveComeToIt) {
  set_device_count(2);
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      ASSERT_EQ(cudaSetDevice(rank), cudaSuccess);
      ncclComm_t comm = nullptr;
      ASSERT_EQ(ncclCommInitRank(&comm, 2, id, rank), ncclSuccess);
      cudaStream_t stream = nullptr;
      ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
      const DeviceArray<int> sum({0}), one({rank + 1});
      for (int i = 0; i < 3; ++i) {
        launch_add(stream, sum.data(), one.data(), 1);
        ASSERT_EQ(ncclAllReduce(sum.data(), sum.data(), 1, ncclInt32, ncclSum, comm, stream), ncclSuccess);
      }
      ASSERT_EQ(ncclCommDestroy(comm), ncclSuccess);  // waits for what is under way
      ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
      EXPECT_EQ(sum.host()[0], 21);  // 3; 3+1 + 3+2 = 9; 9+1 + 9+2 = 21
      ASSERT_EQ(cudaStreamDestroy(stream), cudaSuccess);
    });
  }
  for (auto& rank : ranks) rank.join();
  set_device_count(1);
}

}  // namespace
}  // namespace mica::cuda_emulation
