// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <vector>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include "device_array.hpp"

namespace mica::cuda_emulation {
namespace {

template <class... Params, class... Args>
cudaError_t launch(dim3 grid, dim3 block, void (*kernel)(Params...), Args... args) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  return cudaLaunchKernelEx(&config, kernel, args...);
}

__device__ int warp_sum(int value) {
  for (int offset = warpSize / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffU, value, offset);
  return value;
}

__global__ void __launch_bounds__(256) block_sums(const int* __restrict__ x, int* __restrict__ sums, std::int64_t n) {
  __shared__ int of_warp[32];
  int sum = 0;
  for (std::int64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) sum += x[i];
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = sum;
  __syncthreads();
  sum = warp_sum(threadIdx.x < blockDim.x / 32 ? of_warp[threadIdx.x] : 0);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

TEST(Block, ReductionEqualsALoop) {
  const std::int64_t n = 10007;
  std::vector<int> x(n);
  std::int64_t expected = 0;
  for (std::int64_t i = 0; i < n; ++i) expected += x[i] = static_cast<int>(i * 37 % 101);
  const DeviceArray<int> device_x(x);
  for (const unsigned threads : {32U, 64U, 256U, 1024U}) {
    DeviceArray<int> sums(std::vector<int>(7, -1));
    ASSERT_EQ(launch(7, threads, block_sums, device_x.data(), sums.data(), n), cudaSuccess);
    std::int64_t sum = 0;
    for (const int it : sums.host()) sum += it;
    EXPECT_EQ(sum, expected) << threads;
  }
}

/// Everything that a thread knows of itself, on a grid and a block of three dimensions.
__global__ void coordinates(int* out) {
  const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  __syncthreads();
  atomicAdd(&out[block * (blockDim.x * blockDim.y * blockDim.z) + thread], static_cast<int>(thread + 1000 * block));
}

TEST(Block, ThreadsKnowTheirPlaceAlsoAfterABarrier) {
  DeviceArray<int> out(std::vector<int>(2 * 3 * 2 * 96, 1));
  ASSERT_EQ(launch(dim3(2, 3, 2), dim3(4, 12, 2), coordinates, out.data()), cudaSuccess);
  const auto host = out.host();
  for (int i = 0; i < static_cast<int>(host.size()); ++i) ASSERT_EQ(host[i], 1 + i % 96 + 1000 * (i / 96)) << i;
}

__global__ void lanes(const double* in, double* out, int width) {
  const double value = in[threadIdx.x];
  out[threadIdx.x] = __shfl_xor_sync(0xffffffffU, value, 5, width);
  out[32 + threadIdx.x] = __shfl_down_sync(0xffffffffU, value, 3, width);
  out[64 + threadIdx.x] = __shfl_up_sync(0xffffffffU, value, 3, width);
  out[96 + threadIdx.x] = __shfl_sync(0xffffffffU, value, 2, width);
  out[128 + threadIdx.x] = __ballot_sync(0xffffffffU, threadIdx.x % 3 == 0);
  out[160 + threadIdx.x] = __any_sync(0xffffffffU, threadIdx.x == 31) * 2 + __all_sync(0xffffffffU, threadIdx.x != 31);
  out[192 + threadIdx.x] = __syncthreads_count(threadIdx.x < 5);
}

TEST(Block, ShufflesTakeTheLaneThatCudaNames) {
  std::vector<double> in(32);
  for (int i = 0; i < 32; ++i) in[i] = i + 0.5;
  for (const int width : {8, 32}) {
    const DeviceArray<double> device_in(in);
    DeviceArray<double> out(std::vector<double>(7 * 32));
    ASSERT_EQ(launch(1, 32, lanes, device_in.data(), out.data(), width), cudaSuccess);
    const auto got = out.host();
    for (int i = 0; i < 32; ++i) {
      const int group = i / width * width;
      EXPECT_EQ(got[i], (i ^ 5) + 0.5) << i;
      EXPECT_EQ(got[32 + i], (i + 3 < group + width ? i + 3 : i) + 0.5) << i;
      EXPECT_EQ(got[64 + i], (i - 3 >= group ? i - 3 : i) + 0.5) << i;
      EXPECT_EQ(got[96 + i], group + 2.5) << i;
      EXPECT_EQ(got[128 + i], 0x49249249U) << i;
      EXPECT_EQ(got[160 + i], 2.0) << i;
      EXPECT_EQ(got[192 + i], 5.0) << i;
    }
  }
}

__global__ void half_of_the_threads_leave(int* out) {
  if (threadIdx.x >= 32) return;
  __syncthreads();
  out[threadIdx.x] = 1;
}
__global__ void two_barriers(int* out) {
  if (threadIdx.x % 2 == 0) {
    __syncthreads();
    out[0] = 1;
  } else {
    __syncthreads();
    out[1] = 1;
  }
}
__global__ void lanes_part_ways(int* out) {
  int value = 1;
  if (threadIdx.x < 16) {
    value = __shfl_xor_sync(0xffffffffU, value, 1);
  } else {
    value = __shfl_down_sync(0xffffffffU, value, 1);
  }
  out[threadIdx.x] = value;
}
__global__ void a_lane_stays_away(int* out) {
  if (threadIdx.x != 7) out[threadIdx.x] = __shfl_xor_sync(0xffffffffU, 1, 1);
}

TEST(BlockDeathTest, ThreadsThatDoNotMeetEndTheProcess) {
  DeviceArray<int> out(std::vector<int>(64));
  EXPECT_DEATH((void)launch(1, 64, half_of_the_threads_leave, out.data()),
               "divergent barrier: no thread can go on\n.*32 wait at a barrier.*32 have ended\n"
               ".*block_test.cpp:[0-9]+ in .*half_of_the_threads_leave");
  EXPECT_DEATH((void)launch(1, 64, two_barriers, out.data()), "threads of one block wait at two of them");
  EXPECT_DEATH((void)launch(1, 32, lanes_part_ways, out.data()), "lanes of one warp meet at two places");
  EXPECT_DEATH((void)launch(1, 32, a_lane_stays_away, out.data()), "warp 0: lanes 0xffffff7f of 0xffffffff");
}

template <int kBytes>
__global__ void deep(int* out, int depth) {
  volatile char frame[kBytes];
  for (int i = 0; i < kBytes; ++i) frame[i] = static_cast<char>(depth);
  __syncthreads();
  out[threadIdx.x] = frame[threadIdx.x];
}

TEST(Block, FramesOfThreadsStayApart) {
  DeviceArray<int> out(std::vector<int>(1024));
  ASSERT_EQ(launch(3, 1024, deep<32 << 10>, out.data(), 5), cudaSuccess);
  EXPECT_EQ(out.host(), std::vector<int>(1024, 5));
}

TEST(BlockDeathTest, AFrameThatIsTooLargeEndsTheProcess) {
  DeviceArray<int> out(std::vector<int>(32));
  EXPECT_DEATH((void)launch(1, 32, deep<63 << 10>, out.data(), 5), "needs more than .* bytes of stack");
}

__global__ void nothing() {}

TEST(Block, RefusesWhatCudaRefuses) {
  EXPECT_EQ(launch(1, 1025, nothing), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launch(0, 32, nothing), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launch(dim3(1, 65536), 32, nothing), cudaErrorInvalidConfiguration);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidConfiguration);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_EQ(launch(dim3(70000, 2), 1, nothing), cudaSuccess);
}

__global__ void many_atomics(int* counts, float* sum, unsigned long long* large) {
  atomicAdd(&counts[0], 2);
  atomicMax(&counts[1], static_cast<int>(threadIdx.x));
  atomicMin(&counts[2], -static_cast<int>(threadIdx.x));
  if (atomicCAS(&counts[3], 0, 9) == 0) atomicExch(&counts[4], static_cast<int>(threadIdx.x) + 1);
  atomicAdd(sum, 0.5F);
  atomicAdd(large, 1ULL << 40);
}

TEST(Block, Atomics) {
  DeviceArray<int> counts(std::vector<int>(5));
  DeviceArray<float> sum(std::vector<float>(1));
  DeviceArray<unsigned long long> large(std::vector<unsigned long long>(1));
  ASSERT_EQ(launch(1, 64, many_atomics, counts.data(), sum.data(), large.data()), cudaSuccess);
  EXPECT_EQ(counts.host(), (std::vector<int>{128, 63, -63, 9, 1}));
  EXPECT_EQ(sum.host()[0], 32.0F);
  EXPECT_EQ(large.host()[0], 64ULL << 40);
}

TEST(Halves, RoundAsMicaDoes) {
  EXPECT_EQ(__bfloat16_as_ushort(__float2bfloat16_rn(1.00390625F)), 0x3f80);  // a tie goes to even
  EXPECT_EQ(__bfloat162float(__ushort_as_bfloat16(0xc040)), -3.0F);
  EXPECT_EQ(__half_as_ushort(__float2half_rn(65520.0F)), 0x7c00);
  EXPECT_EQ(__half2float(__ushort_as_half(0x0001)), 0x1p-24F);
  const float2 pair = __bfloat1622float2(__floats2bfloat162_rn(1.5F, -2.0F));
  EXPECT_EQ(pair.x, 1.5F);
  EXPECT_EQ(pair.y, -2.0F);
}

}  // namespace
}  // namespace mica::cuda_emulation
