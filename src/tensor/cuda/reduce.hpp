// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <cuda_runtime.h>

#include "../element_math.hpp"

// Sums and maxima over the threads of a warp or block, in a fixed tree: the same bits in every run.
namespace mica::cuda {

inline constexpr int kWarp = 32;

struct Sum {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
};
/// NaN if any is.
struct Max {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return element::max_or_nan(a, b);
  }
};

/// Every lane of the warp gets the result.
template <class T, class Combine>
__device__ inline T reduce_warp(T value, Combine combine) {
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    value = combine(value, __shfl_xor_sync(0xffffffffU, value, distance));
  }
  return value;
}

/// Every thread of the block gets the result. All of them take part; kThreads is blockDim.x.
template <int kThreads, class T, class Combine>
__device__ inline T reduce_block(T value, Combine combine) {
  __shared__ T of_warp[kThreads / kWarp];
  value = reduce_warp(value, combine);
  if constexpr (kThreads == kWarp) return value;
  __syncthreads();  // readers of an earlier result are done
  if (threadIdx.x % kWarp == 0) of_warp[threadIdx.x / kWarp] = value;
  __syncthreads();
  value = of_warp[0];
#pragma unroll
  for (int w = 1; w < kThreads / kWarp; ++w) value = combine(value, of_warp[w]);
  return value;
}

}  // namespace mica::cuda
