// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "mica/tensor/exact_sum.hpp"
#include "mica/tensor/philox.hpp"

#include "../arguments.hpp"
#include "cuda_kernels.hpp"
#include "reduce.hpp"
#include "vectors.hpp"

namespace mica::cuda {

using namespace arguments;  // NOLINT(google-build-using-namespace)

namespace {

using Limbs = std::span<std::int64_t, ExactSum::kLimbs>;
/// Maximum number of blocks, each with a partial result. They are sums of integers, so the grid does not affect the bits.
constexpr std::int64_t kMostBlocks = 1024;

__device__ void carry_and_add(const std::int64_t* from, std::int64_t* to) {
  for (int k = 0; k < ExactSum::kLimbs; ++k) to[k] += from[k];
  carry(Limbs(to, ExactSum::kLimbs));
}

/// partial[block] = the limbs of the block's elements. Each thread has its own limbs: every number adds to two or three, mostly the same
/// ones for all threads, so atomic additions to shared limbs would be serialized.
constexpr int kExactThreads = 256;
template <class T>
__global__ void exact_power_sum_kernel(const T* x, std::int64_t n, double p, std::int64_t* partial) {
  __shared__ std::int64_t limbs[ExactSum::kLimbs][kExactThreads];
  const auto thread = static_cast<int>(threadIdx.x);
  for (int k = 0; k < ExactSum::kLimbs; ++k) limbs[k][thread] = 0;

  const std::int64_t threads = static_cast<std::int64_t>(gridDim.x) * kExactThreads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kExactThreads + thread; i < n; i += threads) {
    const double size = std::abs(static_cast<double>(to_float(x[i])));
    const double term = p == 2 ? size * size : p == 1 ? size : std::pow(size, p);
    for_each_limb(term, [&](std::int64_t k, std::int64_t units) { limbs[k][thread] += units; });
  }
  __syncthreads();

  for (int k = thread / kWarp; k < ExactSum::kLimbs; k += kExactThreads / kWarp) {
    std::int64_t sum = 0;
    for (int t = thread % kWarp; t < kExactThreads; t += kWarp) sum += limbs[k][t];
    limbs[k][thread % kWarp] = sum;
  }
  __syncthreads();
  if (thread == 0) {
    std::int64_t sum[ExactSum::kLimbs] = {};
    for (int lane = 0; lane < kWarp; ++lane) {
      for (int k = 0; k < ExactSum::kLimbs; ++k) sum[k] += limbs[k][lane];
    }
    carry(Limbs(sum, ExactSum::kLimbs));
    for (int k = 0; k < ExactSum::kLimbs; ++k) partial[blockIdx.x * ExactSum::kLimbs + k] = sum[k];
  }
}

/// One warp per limb.
__global__ void fold_limbs_kernel(const std::int64_t* partial, int blocks, std::int64_t* out, bool accumulate) {
  __shared__ std::int64_t sums[ExactSum::kLimbs];
  const int k = static_cast<int>(threadIdx.x) / kWarp;
  std::int64_t sum = 0;
  for (int b = static_cast<int>(threadIdx.x) % kWarp; b < blocks; b += kWarp) sum += partial[b * ExactSum::kLimbs + k];
  sum = reduce_warp(sum, Sum{});
  if (threadIdx.x % kWarp == 0) sums[k] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int i = 0; i < ExactSum::kLimbs; ++i) out[i] = accumulate ? out[i] : 0;
  carry_and_add(sums, out);
}

__global__ void exact_sum_value_kernel(const std::int64_t* limbs, std::int64_t rows, float* out) {
  if (threadIdx.x != 0) return;
  std::int64_t sum[ExactSum::kLimbs] = {};
  for (std::int64_t i = 0; i < rows; ++i) carry_and_add(limbs + i * ExactSum::kLimbs, sum);
  *out = static_cast<float>(mica::exact_sum_value(std::span<const std::int64_t, ExactSum::kLimbs>(sum, ExactSum::kLimbs)));
}

__global__ void fingerprint_kernel(const std::uint32_t* words, std::int64_t n, std::uint64_t* partial) {
  const std::int64_t threads = static_cast<std::int64_t>(gridDim.x) * kBlockThreads;
  std::uint64_t sum = 0;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kBlockThreads + threadIdx.x; i < n; i += threads) {
    sum += mix64(static_cast<std::uint64_t>(i) << 32 | words[i]);
  }
  sum = reduce_block<kBlockThreads>(sum, Sum{});
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

__global__ void fold_fingerprints_kernel(const std::uint64_t* partial, std::int64_t blocks, std::uint64_t* out) {
  std::uint64_t sum = 0;
  for (std::int64_t i = threadIdx.x; i < blocks; i += kBlockThreads) sum += partial[i];
  sum = reduce_block<kBlockThreads>(sum, Sum{});
  if (threadIdx.x == 0) *out = sum;
}

}  // namespace

void CudaKernels::exact_power_sum(Stream& s, ConstTensorView x, double p, TensorView limbs, Write mode) {
  const std::int64_t n = x.numel();
  expect("exact_power_sum", "x", x, n, kFloats);
  expect("exact_power_sum", "limbs", limbs, ExactSum::kLimbs, {DType::i64});
  require(p > 0 && p < kInfNorm, "exact_power_sum: p is {}, expected more than 0 and finite (a maximum is exact anyway)", p);
  const Grid grid = Grid::over(n, 16, kMostBlocks);
  const std::int64_t blocks = n > 0 ? grid.x : 0;
  const Buffer space = scratch(s, blocks * ExactSum::kLimbs * static_cast<std::int64_t>(sizeof(std::int64_t)));
  auto* partial = static_cast<std::int64_t*>(space.data());
  if (blocks > 0) {
    with_element(x.dtype, [&](auto element) {
      using T = decltype(element);
      launch(s, "exact_power_sum", {reads(x), writes(space)}, grid, exact_power_sum_kernel<T>, static_cast<const T*>(x.data), n, p,
             partial);
    });
  }
  launch(s, "exact_power_sum", {writes(space), mica::writes(limbs)}, Grid{.threads = ExactSum::kLimbs * kWarp}, fold_limbs_kernel, partial,
         blocks, static_cast<std::int64_t*>(limbs.data), mode == Write::accumulate);
}

void CudaKernels::exact_sum_value(Stream& s, ConstTensorView limbs, TensorView out) {
  expect_cols("exact_sum_value", "limbs", limbs, ExactSum::kLimbs, {DType::i64});
  expect("exact_sum_value", "out", out, 1, {DType::f32});
  launch(s, "exact_sum_value", {reads(limbs), mica::writes(out)}, Grid{.threads = kWarp}, exact_sum_value_kernel,
         static_cast<const std::int64_t*>(limbs.data), limbs.shape.rows(), static_cast<float*>(out.data));
}

void CudaKernels::fingerprint(Stream& s, ConstTensorView x, TensorView out) {
  const std::int64_t n = x.numel();
  expect("fingerprint", "x", x, n, {DType::f32});
  expect("fingerprint", "out", out, 1, {DType::i64});
  const Grid grid = Grid::over(n, 16, kMostBlocks);
  const Buffer space = scratch(s, grid.x * static_cast<std::int64_t>(sizeof(std::uint64_t)));
  auto* partial = static_cast<std::uint64_t*>(space.data());
  launch(s, "fingerprint", {reads(x), writes(space)}, grid, fingerprint_kernel, static_cast<const std::uint32_t*>(x.data), n, partial);
  launch(s, "fingerprint", {writes(space), mica::writes(out)}, Grid{}, fold_fingerprints_kernel, partial, grid.x,
         static_cast<std::uint64_t*>(out.data));
}

}  // namespace mica::cuda
