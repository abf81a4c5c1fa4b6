// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include <cuda.h>
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include "cuda_emulation.hpp"
#include "device_array.hpp"

namespace mica::cuda_emulation {
namespace {

constexpr std::size_t kPage = std::size_t{2} << 20;

CUmemAllocationProp on_device(int device) {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  return prop;
}
const CUmemAccessDesc kReadWrite{{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};

TEST(RuntimeDeathTest, TheHostCannotTouchDeviceMemory) {
  const DeviceArray<int> array({1, 2, 3});
  EXPECT_EXIT({ [[maybe_unused]] volatile int value = *const_cast<volatile int*>(array.data()); }, ::testing::KilledBySignal(SIGSEGV), "");
  EXPECT_EXIT(*const_cast<volatile int*>(array.data()) = 4, ::testing::KilledBySignal(SIGSEGV), "");
  EXPECT_EQ(array.host(), (std::vector<int>{1, 2, 3}));
}

TEST(RuntimeDeathTest, TheHostCannotTouchNewDeviceMemory) {
  int* device = nullptr;
  ASSERT_EQ(cudaMalloc(&device, 4), cudaSuccess);
  EXPECT_EXIT(*const_cast<volatile int*>(device) = 4, ::testing::KilledBySignal(SIGSEGV), "");
  ASSERT_EQ(cudaFree(device), cudaSuccess);
}

__global__ void write_at(int* out, std::int64_t at) { out[at] = 1; }

TEST(RuntimeDeathTest, AKernelCannotTouchWhatIsNotAllocated) {
  const DeviceArray<int> array(std::vector<int>(64));
  cudaLaunchConfig_t config{};
  EXPECT_EXIT((void)cudaLaunchKernelEx(&config, write_at, array.data(), std::int64_t{64}), ::testing::KilledBySignal(SIGSEGV), "");
}

template <class Free>
void write_next_to(std::byte* block, std::int64_t at, const Free& free) {
  cudaLaunchConfig_t config{};
  config.gridDim = config.blockDim = {1, 1, 1};
  (void)cudaLaunchKernelEx(&config, write_at, reinterpret_cast<int*>(block), at);
  (void)free(block);
}

TEST(RuntimeDeathTest, WhatIsWrittenNextToABlockIsFoundWhenItIsFreed) {
  const auto device = [](std::int64_t at) {
    std::byte* block = nullptr;
    (void)cudaMalloc(&block, 8);
    write_next_to(block, at, cudaFree);
    std::exit(0);
  };
  const auto pinned = [](std::int64_t at) {
    std::byte* block = nullptr;
    (void)cudaHostAlloc(&block, 8, cudaHostAllocDefault);
    write_next_to(block, at, cudaFreeHost);
    std::exit(0);
  };
  for (const auto& try_at : {std::function<void(std::int64_t)>(device), std::function<void(std::int64_t)>(pinned)}) {
    EXPECT_EXIT(try_at(1), ::testing::ExitedWithCode(0), "");
    EXPECT_EXIT(try_at(2), ::testing::KilledBySignal(SIGABRT), "wrote behind a block of 8 bytes");
    EXPECT_EXIT(try_at(-1), ::testing::KilledBySignal(SIGABRT), "wrote before a block of 8 bytes");
    EXPECT_EXIT(try_at(64), ::testing::KilledBySignal(SIGSEGV), "");  // 256 bytes on
  }
}

TEST(Runtime, CopiesMayNotPassTheEndOfABlock) {
  std::byte* device = nullptr;
  ASSERT_EQ(cudaMalloc(&device, 10), cudaSuccess);
  std::byte host[11] = {};
  EXPECT_EQ(cudaMemcpy(device, host, 11, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(device + 1, host, 9, cudaMemcpyHostToDevice), cudaSuccess);
  EXPECT_EQ(cudaMemset(device + 1, 0, 10), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFree(device), cudaSuccess);
}

TEST(Runtime, NewDeviceMemoryIsNotANumber) {
  float* device = nullptr;
  ASSERT_EQ(cudaMalloc(&device, 12), cudaSuccess);
  float host = 0;
  ASSERT_EQ(cudaMemcpy(&host, device + 2, 4, cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_TRUE(std::isnan(host));
  EXPECT_EQ(cudaFree(device), cudaSuccess);
  EXPECT_EQ(cudaFree(device), cudaErrorInvalidValue);
}

TEST(Runtime, CopiesSayWhereTheirMemoryIs) {
  const DeviceArray<int> array({1, 2, 3, 4});
  int host[4] = {};
  EXPECT_EQ(cudaMemcpy(host, array.data(), 16, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(array.data(), host, 16, cudaMemcpyDeviceToDevice), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(host, array.data(), 16, cudaMemcpyDefault), cudaSuccess);
  EXPECT_EQ(host[3], 4);
  EXPECT_EQ(cudaMemset(array.data(), 0, 8), cudaSuccess);
  EXPECT_EQ(array.host(), (std::vector<int>{0, 0, 3, 4}));
  EXPECT_EQ(cudaMemcpy2DAsync(host, 4, array.data(), 8, 4, 2, cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_EQ(host[1], 3);
  cudaPointerAttributes attributes{};
  ASSERT_EQ(cudaPointerGetAttributes(&attributes, array.data() + 1), cudaSuccess);
  EXPECT_EQ(attributes.type, cudaMemoryTypeDevice);
  ASSERT_EQ(cudaPointerGetAttributes(&attributes, host), cudaSuccess);
  EXPECT_EQ(attributes.type, cudaMemoryTypeUnregistered);
}

TEST(Runtime, CountsCallsAndWaits) {
  const DeviceArray<int> array({1, 2, 3, 4});
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  int* pinned = nullptr;
  ASSERT_EQ(cudaHostAlloc(&pinned, 16, cudaHostAllocDefault), cudaSuccess);
  reset_calls();
  EXPECT_EQ(cudaMemcpyAsync(pinned, array.data(), 16, cudaMemcpyDeviceToHost, stream), cudaSuccess);
  EXPECT_EQ(calls("cudaMemcpyAsync"), 1);
  EXPECT_EQ(host_waits(), 0);
  int host[4];
  EXPECT_EQ(cudaMemcpyAsync(host, array.data(), 16, cudaMemcpyDeviceToHost, stream), cudaSuccess);
  EXPECT_EQ(calls("pageable copy"), 1);
  EXPECT_EQ(host_waits(), 1);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(calls("cudaStreamSynchronize"), 1);
  EXPECT_EQ(host_waits(), 2);
  EXPECT_EQ(cudaFreeHost(pinned), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(pinned_in_use(), 0);
}

TEST(Runtime, FailsWhenToldTo) {
  fail_next("cudaMalloc", cudaErrorMemoryAllocation, 1);
  void* device = nullptr;
  ASSERT_EQ(cudaMalloc(&device, 4), cudaSuccess);
  EXPECT_EQ(cudaFree(device), cudaSuccess);
  EXPECT_EQ(cudaMalloc(&device, 4), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  ASSERT_EQ(cudaMalloc(&device, 4), cudaSuccess);
  EXPECT_EQ(cudaFree(device), cudaSuccess);
  EXPECT_STREQ(cudaGetErrorName(cudaErrorMemoryAllocation), "cudaErrorMemoryAllocation");
  EXPECT_STREQ(cudaGetErrorString(cudaErrorMemoryAllocation), "out of memory");
}

TEST(Runtime, DevicesAreAsManyAsToldAndThreadsChooseTheirs) {
  set_device_count(0);
  int count = -1;
  EXPECT_EQ(cudaGetDeviceCount(&count), cudaErrorNoDevice);
  EXPECT_EQ(cudaSetDevice(0), cudaErrorNoDevice);
  set_device_count(2);
  EXPECT_EQ(cudaGetDeviceCount(&count), cudaSuccess);
  EXPECT_EQ(count, 2);
  std::thread([] {
    EXPECT_EQ(cudaSetDevice(1), cudaSuccess);
    char id[16];
    EXPECT_EQ(cudaDeviceGetPCIBusId(id, sizeof(id), 1), cudaSuccess);
    EXPECT_STREQ(id, "0000:02:00.0");
    cudaStream_t stream = nullptr;
    EXPECT_EQ(cudaStreamCreate(&stream), cudaSuccess);
    EXPECT_EQ(cudaSetDevice(0), cudaSuccess);
    const DeviceArray<int> array({0, 0});
    cudaLaunchConfig_t config{};
    config.stream = stream;
    EXPECT_EQ(cudaLaunchKernelEx(&config, write_at, array.data(), 0), cudaErrorInvalidResourceHandle);
    EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  }).join();
  int device = -1;
  EXPECT_EQ(cudaGetDevice(&device), cudaSuccess);
  EXPECT_EQ(device, 0);
  EXPECT_EQ(cudaSetDevice(2), cudaErrorInvalidDevice);
  set_device_count(1);
}

TEST(Runtime, EventsTellTimeAndOrder) {
  cudaEvent_t begin = nullptr, end = nullptr, untimed = nullptr;
  ASSERT_EQ(cudaEventCreate(&begin), cudaSuccess);
  ASSERT_EQ(cudaEventCreate(&end), cudaSuccess);
  ASSERT_EQ(cudaEventCreateWithFlags(&untimed, cudaEventDisableTiming), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(begin, nullptr), cudaSuccess);
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  float ms = 0;
  EXPECT_EQ(cudaEventElapsedTime(&ms, begin, end), cudaErrorInvalidResourceHandle);  // not recorded
  ASSERT_EQ(cudaEventRecord(end, nullptr), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(untimed, nullptr), cudaSuccess);
  ASSERT_EQ(cudaEventElapsedTime(&ms, begin, end), cudaSuccess);
  EXPECT_GE(ms, 2.0F);
  EXPECT_EQ(cudaEventElapsedTime(&ms, begin, untimed), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaStreamWaitEvent(nullptr, end), cudaSuccess);
  for (auto* event : {begin, end, untimed}) EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(begin), cudaErrorInvalidResourceHandle);
}

TEST(Runtime, HostFunctionsMayNotCallCuda) {
  cudaError_t seen = cudaSuccess;
  ASSERT_EQ(cudaLaunchHostFunc(
                nullptr, [](void* data) { *static_cast<cudaError_t*>(data) = cudaStreamQuery(nullptr); }, &seen),
            cudaSuccess);
  EXPECT_EQ(seen, cudaErrorNotPermitted);
  EXPECT_EQ(cudaStreamQuery(nullptr), cudaSuccess);
}

TEST(VirtualMemory, PagesKeepTheirContentsWhereverTheyAreMapped) {
  const auto prop = on_device(0);
  CUdeviceptr range = 0;
  ASSERT_EQ(cuMemAddressReserve(&range, 4 * kPage, 0, 0, 0), CUDA_SUCCESS);
  CUmemGenericAllocationHandle page = 0;
  ASSERT_EQ(cuMemCreate(&page, kPage, &prop, 0), CUDA_SUCCESS);
  EXPECT_EQ(memory_in_use(), static_cast<std::int64_t>(kPage));
  ASSERT_EQ(cuMemMap(range, kPage, 0, page, 0), CUDA_SUCCESS);
  auto* data = reinterpret_cast<int*>(range);
  int value = 7;
  EXPECT_EQ(cudaMemcpy(data, &value, 4, cudaMemcpyHostToDevice), cudaErrorInvalidValue);  // no access yet
  ASSERT_EQ(cuMemSetAccess(range, kPage, &kReadWrite, 1), CUDA_SUCCESS);
  ASSERT_EQ(cudaMemcpy(data, &value, 4, cudaMemcpyHostToDevice), cudaSuccess);
  EXPECT_EQ(cudaMemcpy(data + kPage / 4 - 1, &range, 8, cudaMemcpyHostToDevice), cudaErrorInvalidValue);  // beyond it
  EXPECT_EQ(cuMemMap(range, kPage, 0, page, 0), CUDA_ERROR_INVALID_VALUE);                                // there is something
  ASSERT_EQ(cuMemUnmap(range, kPage), CUDA_SUCCESS);
  ASSERT_EQ(cuMemMap(range + 2 * kPage, kPage, 0, page, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuMemSetAccess(range + 2 * kPage, kPage, &kReadWrite, 1), CUDA_SUCCESS);
  ASSERT_EQ(cuMemRelease(page), CUDA_SUCCESS);
  EXPECT_EQ(memory_in_use(), static_cast<std::int64_t>(kPage));  // the mapping holds it
  value = 0;
  ASSERT_EQ(cudaMemcpy(&value, data + 2 * kPage / 4, 4, cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_EQ(value, 7);
  EXPECT_EQ(cuMemAddressFree(range, 4 * kPage), CUDA_ERROR_INVALID_VALUE);  // still mapped
  ASSERT_EQ(cuMemUnmap(range + 2 * kPage, kPage), CUDA_SUCCESS);
  EXPECT_EQ(memory_in_use(), 0);
  ASSERT_EQ(cuMemAddressFree(range, 4 * kPage), CUDA_SUCCESS);
}

TEST(VirtualMemory, ADeviceHasAsMuchAsTold) {
  const auto prop = on_device(0);
  set_memory_bytes(3 * kPage / 2);
  CUmemGenericAllocationHandle first = 0, second = 0;
  ASSERT_EQ(cuMemCreate(&first, kPage, &prop, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuMemCreate(&second, kPage, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
  void* device = nullptr;
  EXPECT_EQ(cudaMalloc(&device, kPage), cudaErrorMemoryAllocation);
  std::size_t free = 0, total = 0;
  ASSERT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  EXPECT_EQ(free, kPage / 2);
  EXPECT_EQ(total, 3 * kPage / 2);
  ASSERT_EQ(cuMemRelease(first), CUDA_SUCCESS);
  set_memory_bytes(std::int64_t{4} << 30);
}

TEST(StreamWaits, UntilAnotherThreadWritesTheValue) {
  std::uint32_t* word = nullptr;
  ASSERT_EQ(cudaHostAlloc(&word, 4, cudaHostAllocDefault), cudaSuccess);
  *word = 0;
  std::thread writer([word] {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    cudaStream_t other = nullptr;
    EXPECT_EQ(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking), cudaSuccess);
    EXPECT_EQ(cuStreamWriteValue32(other, reinterpret_cast<CUdeviceptr>(word), 3, 0), CUDA_SUCCESS);
    EXPECT_EQ(cudaStreamDestroy(other), cudaSuccess);
  });
  EXPECT_EQ(cuStreamWaitValue32(nullptr, reinterpret_cast<CUdeviceptr>(word), 2, CU_STREAM_WAIT_VALUE_GEQ), CUDA_SUCCESS);
  EXPECT_EQ(*word, 3U);
  writer.join();
  EXPECT_EQ(cudaFreeHost(word), cudaSuccess);
  std::uint32_t pageable = 5;
  EXPECT_EQ(cuStreamWaitValue32(nullptr, reinterpret_cast<CUdeviceptr>(&pageable), 5, 0), CUDA_ERROR_INVALID_VALUE);
}

TEST(EntryPoints, AreFoundByName) {
  void* function = nullptr;
  auto status = cudaDriverEntryPointSymbolNotFound;
  ASSERT_EQ(cudaGetDriverEntryPointByVersion("cuMemCreate", &function, 12000, cudaEnableDefault, &status), cudaSuccess);
  EXPECT_EQ(status, cudaDriverEntryPointSuccess);
  EXPECT_EQ(function, reinterpret_cast<void*>(&cuMemCreate));
  ASSERT_EQ(cudaGetDriverEntryPointByVersion("cuNothing", &function, 12000, cudaEnableDefault, &status), cudaSuccess);
  EXPECT_EQ(status, cudaDriverEntryPointSymbolNotFound);
}

}  // namespace
}  // namespace mica::cuda_emulation
