// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <chrono>
#include <functional>
#include <thread>
#include <vector>

#include <cuda.h>
#include <cuda_runtime.h>
#include <gtest/gtest.h>
#include <nccl.h>

#include "mica/core/half.hpp"

#include "cuda_emulation.hpp"
#include "device_array.hpp"

namespace mica::cuda_emulation {
namespace {

using namespace std::chrono_literals;

class Nccl : public ::testing::Test {
 protected:
  Nccl() { set_device_count(4); }
  ~Nccl() override {
    set_device_count(1);
    set_nccl_patience(0ms);
    share_devices_between_nccl_ranks(false);
    EXPECT_EQ(cudaSetDevice(0), cudaSuccess);
  }
};

/// One rank: its GPU, a communicator and a stream.
struct Rank {
  int number = 0;
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;

  /// Asks until the last call is done.
  [[nodiscard]] ncclResult_t settle(ncclResult_t result) const {
    while (result == ncclInProgress) {
      ncclResult_t state = ncclSuccess;
      if (const auto asked = ncclCommGetAsyncError(comm, &state); asked != ncclSuccess) return asked;
      result = state;
      std::this_thread::yield();
    }
    return result;
  }
};

void on_ranks(int count, bool blocking, const std::function<void(Rank&)>& body) {
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  std::vector<std::thread> threads;
  for (int r = 0; r < count; ++r) {
    threads.emplace_back([&, r] {
      Rank rank{r};
      ASSERT_EQ(cudaSetDevice(r), cudaSuccess);
      ASSERT_EQ(cudaStreamCreateWithFlags(&rank.stream, cudaStreamNonBlocking), cudaSuccess);
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.blocking = blocking ? 1 : 0;
      const auto result = ncclCommInitRankConfig(&rank.comm, count, id, r, &config);
      EXPECT_EQ(result, blocking ? ncclSuccess : ncclInProgress);
      ASSERT_EQ(rank.settle(result), ncclSuccess);
      body(rank);
      if (rank.comm != nullptr) {
        EXPECT_EQ(rank.settle(ncclCommFinalize(rank.comm)), ncclSuccess);
        EXPECT_EQ(ncclCommDestroy(rank.comm), ncclSuccess);
      }
      EXPECT_EQ(cudaStreamDestroy(rank.stream), cudaSuccess);
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST_F(Nccl, CollectivesEqualLoops) {
  for (const bool blocking : {true, false}) {
    on_ranks(3, blocking, [](Rank& rank) {
      const auto r = static_cast<float>(rank.number);
      const DeviceArray<float> own({r, r + 10}), all(std::vector<float>(6)), six({r, r, r, 2 * r, 2 * r, 2 * r});
      ASSERT_EQ(rank.settle(ncclAllGather(own.data(), all.data(), 2, ncclFloat32, rank.comm, rank.stream)), ncclSuccess);
      EXPECT_EQ(all.host(), (std::vector<float>{0, 10, 1, 11, 2, 12}));
      ASSERT_EQ(rank.settle(ncclReduceScatter(all.data(), all.data() + 2 * rank.number, 2, ncclFloat32, ncclSum, rank.comm, rank.stream)),
                ncclSuccess);  // in place
      const auto i = static_cast<std::size_t>(2 * rank.number);
      EXPECT_EQ(all.host()[i], 3 * r);
      EXPECT_EQ(all.host()[i + 1], 3 * (r + 10));
      ASSERT_EQ(rank.settle(ncclAllReduce(own.data(), own.data(), 2, ncclFloat32, ncclMax, rank.comm, rank.stream)), ncclSuccess);
      EXPECT_EQ(own.host(), (std::vector<float>{2, 12}));
      ASSERT_EQ(rank.settle(ncclAllReduce(six.data(), six.data(), 6, ncclFloat32, ncclAvg, rank.comm, rank.stream)), ncclSuccess);
      EXPECT_EQ(six.host(), (std::vector<float>{1, 1, 1, 2, 2, 2}));
      const DeviceArray<float> mine({r});
      ASSERT_EQ(rank.settle(ncclBroadcast(mine.data(), mine.data(), 1, ncclFloat32, 2, rank.comm, rank.stream)), ncclSuccess);
      EXPECT_EQ(mine.host(), (std::vector<float>{2}));
    });
  }
}

TEST_F(Nccl, SixteenBitSumsRoundAfterEachRank) {
  on_ranks(3, true, [](Rank& rank) {
    const DeviceArray<bf16> x({bf16(rank.number == 0 ? 256.0F : 1.0F)});
    ASSERT_EQ(ncclAllReduce(x.data(), x.data(), 1, ncclBfloat16, ncclSum, rank.comm, rank.stream), ncclSuccess);
    EXPECT_EQ(static_cast<float>(x.host()[0]), 256.0F);  // 257 is a tie and goes to even, twice
  });
}

TEST_F(Nccl, GroupedSendsAndReceivesMeet) {
  on_ranks(3, false, [](Rank& rank) {
    const float r = static_cast<float>(rank.number);
    const DeviceArray<float> sent({10 * r, 10 * r + 1, 10 * r + 2}), received({-1, -1, -1});
    ASSERT_EQ(ncclGroupStart(), ncclSuccess);
    for (int peer = 0; peer < 3; ++peer) {
      ASSERT_EQ(ncclSend(sent.data() + peer, 1, ncclFloat32, peer, rank.comm, rank.stream), ncclSuccess);
      ASSERT_EQ(ncclRecv(received.data() + peer, 1, ncclFloat32, peer, rank.comm, rank.stream), ncclSuccess);
    }
    ASSERT_EQ(rank.settle(ncclGroupEnd()), ncclSuccess);
    EXPECT_EQ(received.host(), (std::vector<float>{r, 10 + r, 20 + r}));
  });
}

TEST_F(Nccl, ACallUnderWayWantsToBeAskedFor) {
  on_ranks(1, false, [](Rank& rank) {
    const DeviceArray<float> x({1});
    const auto reduce = [&] { return ncclAllReduce(x.data(), x.data(), 1, ncclFloat32, ncclSum, rank.comm, rank.stream); };
    ASSERT_EQ(reduce(), ncclInProgress);
    EXPECT_EQ(reduce(), ncclInvalidArgument);
    EXPECT_NE(std::string(ncclGetLastError(nullptr)).find("before the previous operation"), std::string::npos);
    EXPECT_EQ(rank.settle(ncclInProgress), ncclSuccess);
    EXPECT_EQ(rank.settle(reduce()), ncclSuccess);
  });
}

TEST_F(Nccl, RefusesTwoRanksOnOneDevice) {
  set_device_count(1);
  for (const bool shared : {false, true}) {
    share_devices_between_nccl_ranks(shared);
    ncclUniqueId id;
    ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
    std::vector<ncclResult_t> results(2, ncclNumResults);
    std::vector<std::thread> threads;
    for (int r = 0; r < 2; ++r) {
      threads.emplace_back([&, r] {
        ncclComm_t comm = nullptr;
        results[static_cast<std::size_t>(r)] = ncclCommInitRank(&comm, 2, id, r);
        if (comm != nullptr) ncclCommDestroy(comm);
      });
    }
    for (auto& thread : threads) thread.join();
    const auto expected = shared ? ncclSuccess : ncclInvalidUsage;
    EXPECT_EQ(results, (std::vector<ncclResult_t>{expected, expected}));
  }
}

TEST_F(Nccl, RefusesMemoryThatItCannotUse) {
  on_ranks(1, true, [](Rank& rank) {
    const DeviceArray<float> x({1, 2});
    float host = 0;
    EXPECT_EQ(ncclAllReduce(&host, x.data(), 1, ncclFloat32, ncclSum, rank.comm, rank.stream), ncclInvalidArgument);
    EXPECT_EQ(ncclAllReduce(x.data(), x.data(), 4096, ncclFloat32, ncclSum, rank.comm, rank.stream), ncclInvalidArgument);
    EXPECT_EQ(ncclAllGather(x.data(), reinterpret_cast<char*>(x.data()) + 2, 1, ncclFloat32, rank.comm, rank.stream), ncclInvalidArgument);
  });
}

/// Every way for a collective not to end: the stream and what is recorded on it stay busy until the abort.
TEST_F(Nccl, WhatNeverHappensKeepsStreamsBusyUntilTheAbort) {
  enum class Way { hangs, fails, is_missing };
  for (const auto way : {Way::hangs, Way::fails, Way::is_missing}) {
    if (way == Way::is_missing) set_nccl_patience(20ms);
    on_ranks(2, false, [way](Rank& rank) {
      if (rank.number == 1 && way == Way::hangs) hang_next_nccl_operation(1);
      if (rank.number == 1 && way == Way::fails) fail_next_nccl_operation(1, ncclRemoteError);
      if (rank.number == 0 || way != Way::is_missing) {
        const DeviceArray<float> x({1});
        const auto result = ncclAllReduce(x.data(), x.data(), 1, ncclFloat32, ncclSum, rank.comm, rank.stream);
        EXPECT_EQ(rank.settle(result), way == Way::fails && rank.number == 1 ? ncclRemoteError : ncclSuccess);
        EXPECT_EQ(x.host()[0], 1.0F);
        cudaEvent_t event = nullptr, on_other = nullptr;
        cudaStream_t other = nullptr;
        ASSERT_EQ(cudaEventCreate(&event), cudaSuccess);
        ASSERT_EQ(cudaEventCreate(&on_other), cudaSuccess);
        ASSERT_EQ(cudaStreamCreate(&other), cudaSuccess);
        ASSERT_EQ(cudaEventRecord(event, rank.stream), cudaSuccess);
        ASSERT_EQ(cudaStreamWaitEvent(other, event), cudaSuccess);
        ASSERT_EQ(cudaEventRecord(on_other, other), cudaSuccess);
        EXPECT_EQ(cudaEventQuery(event), cudaErrorNotReady);
        EXPECT_EQ(cudaEventQuery(on_other), cudaErrorNotReady);
        EXPECT_EQ(cudaStreamQuery(rank.stream), cudaErrorNotReady);
        EXPECT_EQ(ncclCommAbort(rank.comm), ncclSuccess);
        EXPECT_EQ(cudaEventQuery(on_other), cudaSuccess);
        EXPECT_EQ(cudaStreamSynchronize(rank.stream), cudaSuccess);
        EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
        EXPECT_EQ(cudaEventDestroy(on_other), cudaSuccess);
        EXPECT_EQ(cudaStreamDestroy(other), cudaSuccess);
      } else {
        EXPECT_EQ(ncclCommAbort(rank.comm), ncclSuccess);
      }
      ncclResult_t state = ncclSuccess;
      EXPECT_EQ(ncclCommGetAsyncError(rank.comm, &state), ncclInvalidArgument);  // the handle is gone
      rank.comm = nullptr;
    });
  }
}

TEST_F(Nccl, ARankThatGaveUpIsNotWaitedForWithItsMemory) {
  std::atomic<bool> gave_up = false;
  on_ranks(2, true, [&](Rank& rank) {
    if (rank.number == 0) {
      const DeviceArray<float> x({1});
      std::thread watch([&] {
        std::this_thread::sleep_for(20ms);
        EXPECT_EQ(ncclCommAbort(rank.comm), ncclSuccess);
      });
      (void)ncclAllReduce(x.data(), x.data(), 1, ncclFloat32, ncclSum, rank.comm, rank.stream);
      watch.join();
    } else {
      while (!gave_up) std::this_thread::yield();
      const DeviceArray<float> x({1});
      EXPECT_EQ(ncclAllReduce(x.data(), x.data(), 1, ncclFloat32, ncclSum, rank.comm, rank.stream), ncclSuccess);
      EXPECT_EQ(cudaStreamQuery(rank.stream), cudaErrorNotReady);
      EXPECT_EQ(ncclCommAbort(rank.comm), ncclSuccess);
    }
    rank.comm = nullptr;
    gave_up = true;
  });
}

/// Device memory by the driver's calls: pieces of 2 MiB, one behind the other.
class Pieces {
 public:
  Pieces(int count, bool shareable) : count_(count) {
    EXPECT_EQ(cuMemAddressReserve(&address_, bytes(), kPiece, 0, 0), CUDA_SUCCESS);
    CUmemAllocationProp prop{};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    EXPECT_EQ(cudaGetDevice(&prop.location.id), cudaSuccess);
    if (shareable) {
      prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
      prop.allocFlags.gpuDirectRDMACapable = 1;
    }
    for (int i = 0; i < count; ++i) {
      CUmemGenericAllocationHandle handle = 0;
      EXPECT_EQ(cuMemCreate(&handle, kPiece, &prop, 0), CUDA_SUCCESS);
      EXPECT_EQ(cuMemMap(address_ + static_cast<CUdeviceptr>(i) * kPiece, kPiece, 0, handle, 0), CUDA_SUCCESS);
      EXPECT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
    }
    CUmemAccessDesc access{};
    access.location = prop.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    EXPECT_EQ(cuMemSetAccess(address_, bytes(), &access, 1), CUDA_SUCCESS);
  }
  ~Pieces() {
    EXPECT_EQ(cuMemUnmap(address_, bytes()), CUDA_SUCCESS);
    EXPECT_EQ(cuMemAddressFree(address_, bytes()), CUDA_SUCCESS);
  }
  Pieces(const Pieces&) = delete;
  Pieces& operator=(const Pieces&) = delete;

  static constexpr std::size_t kPiece = std::size_t{2} << 20;
  [[nodiscard]] std::size_t bytes() const { return static_cast<std::size_t>(count_) * kPiece; }
  [[nodiscard]] float* at(std::size_t offset) const { return reinterpret_cast<float*>(address_ + offset); }

 private:
  int count_;
  CUdeviceptr address_ = 0;
};

TEST_F(Nccl, RegistersWhatWouldBeOfUseOnceAndTakesItBackOnce) {
  on_ranks(1, true, [](Rank& rank) {
    const Pieces good(2, true), own(1, false);
    void *first = nullptr, *other = nullptr;
    float host = 0;
    EXPECT_EQ(ncclCommRegister(rank.comm, &host, 4, &other), ncclInvalidArgument);
    EXPECT_EQ(ncclCommRegister(rank.comm, own.at(0), Pieces::kPiece, &other), ncclInvalidArgument);
    EXPECT_EQ(ncclCommRegister(rank.comm, good.at(0), good.bytes(), &other), ncclInvalidArgument) << "two pieces";
    ASSERT_EQ(ncclCommRegister(rank.comm, good.at(0), Pieces::kPiece, &first), ncclSuccess);
    EXPECT_EQ(ncclCommRegister(rank.comm, good.at(4096), 4096, &other), ncclInvalidUsage) << "twice";
    EXPECT_EQ(registered_now(), 1);
    const std::int64_t before = registered_operations();
    ASSERT_EQ(ncclAllReduce(good.at(256), good.at(256), 4, ncclFloat32, ncclSum, rank.comm, rank.stream), ncclSuccess);
    ASSERT_EQ(ncclAllReduce(good.at(Pieces::kPiece), good.at(Pieces::kPiece), 4, ncclFloat32, ncclSum, rank.comm, rank.stream),
              ncclSuccess);
    EXPECT_EQ(registered_operations(), before + 1);
    EXPECT_EQ(ncclCommDeregister(rank.comm, first), ncclSuccess);
    EXPECT_EQ(ncclCommDeregister(rank.comm, first), ncclInvalidUsage) << "twice";
    ASSERT_EQ(ncclCommRegister(rank.comm, good.at(0), 4096, &first), ncclSuccess);
    EXPECT_EQ(ncclCommAbort(rank.comm), ncclSuccess);
    rank.comm = nullptr;
    EXPECT_EQ(registered_now(), 0) << "they end with their communicator";
  });
}

using NcclDeathTest = Nccl;

TEST_F(NcclDeathTest, MemoryThatGoesWhileItIsRegisteredEndsTheProcess) {
  const auto run = [] {
    on_ranks(1, true, [](Rank& rank) {
      const Pieces pieces(1, true);
      void* handle = nullptr;
      (void)ncclCommRegister(rank.comm, pieces.at(0), 4096, &handle);
    });
  };
  EXPECT_DEATH(run(), "memory goes that is registered with NCCL");
}

TEST_F(NcclDeathTest, RanksWhoseBuffersAreRegisteredUnlikeEndTheProcess) {
  for (const bool both : {false, true}) {  // one rank only; both, at other distances from the beginning
    const auto run = [both] {
      on_ranks(2, true, [both](Rank& rank) {
        const Pieces pieces(1, true);
        void* handle = nullptr;
        if (both || rank.number == 0) (void)ncclCommRegister(rank.comm, pieces.at(0), Pieces::kPiece, &handle);
        float* data = pieces.at(both && rank.number == 0 ? 512 : 0);
        (void)ncclAllReduce(data, data, 4, ncclFloat32, ncclSum, rank.comm, rank.stream);
      });
    };
    EXPECT_DEATH(run(), "registered unlike: ncclAllReduce");
  }
}

TEST_F(NcclDeathTest, RanksThatAskForDifferentThingsEndTheProcess) {
  const auto run = [] {
    on_ranks(2, true, [](Rank& rank) {
      const DeviceArray<float> x({1, 2});
      (void)ncclAllReduce(x.data(), x.data(), rank.number == 0 ? 1 : 2, ncclFloat32, ncclSum, rank.comm, rank.stream);
    });
  };
  EXPECT_DEATH(run(), "ask for different things(.|\n)*rank . of 2: ncclAllReduce of . elements");
}

}  // namespace
}  // namespace mica::cuda_emulation
