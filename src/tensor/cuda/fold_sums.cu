// SPDX-License-Identifier: Apache-2.0
#include "fold_sums.hpp"

#include <algorithm>

#include "elements.hpp"
#include "reduce.hpp"

namespace mica::cuda {

namespace {

constexpr int kMostWarps = 32;
/// The number of sums that a warp adds.
constexpr std::int64_t kSumsPerWarp = 8;

/// Computes row blockIdx.y of the output. A block has kWarp columns, and each of its warps adds a part of the sums: if one thread added a
/// whole column, a few hundred sums would be that many dependent reads, in few blocks.
template <class T>
__global__ void __launch_bounds__(kMostWarps* kWarp)
    fold_sums_kernel(const float* sums, std::int64_t num_sums, std::int64_t cols, T* first, T* second, bool accumulate) {
  __shared__ float of_warp[kMostWarps][kWarp];
  T* to = blockIdx.y == 0 ? first : second;
  if (to == nullptr) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  const std::int64_t j = static_cast<std::int64_t>(blockIdx.x) * kWarp + lane;
  float sum = 0;
  if (j < cols) {
#pragma unroll 8
    for (std::int64_t i = warp; i < num_sums; i += warps) sum += sums[(i * gridDim.y + blockIdx.y) * cols + j];
  }
  of_warp[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || j >= cols) return;
  for (int w = 1; w < warps; ++w) sum += of_warp[w][lane];
  to[j] = from_float<T>(accumulate ? to_float(to[j]) + sum : sum);
}

}  // namespace

void fold_sums(Stream& s, const char* what, const BlockSums& sums, TensorView first, TensorView second, Write mode) {
  if (first && second && first.dtype != second.dtype) {
    fold_sums(s, what, sums, first, {}, mode);
    return fold_sums(s, what, sums, {}, second, mode);
  }
  if (!first && !second) return;
  const std::int64_t warps = std::clamp((sums.num + kSumsPerWarp - 1) / kSumsPerWarp, std::int64_t{1}, std::int64_t{kMostWarps});
  const Grid grid{.x = (sums.cols + kWarp - 1) / kWarp, .y = sums.rows, .threads = static_cast<int>(warps) * kWarp};
  with_element((first ? first : second).dtype, [&](auto element) {
    using T = decltype(element);
    launch(s, what, {reads(sums.space.data(), sums.space.bytes()), writes(first), writes(second)}, grid, fold_sums_kernel<T>,
           static_cast<const float*>(sums.space.data()), sums.num, sums.cols, static_cast<T*>(first.data), static_cast<T*>(second.data),
           mode == Write::accumulate);
  });
}

}  // namespace mica::cuda
