// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "../layer_arguments.hpp"
#include "cuda_kernels.hpp"
#include "fold_sums.hpp"
#include "reduce.hpp"
#include "vectors.hpp"

// [Note: gradients of norms on a GPU] One kernel reads x and dy once and computes all gradients. A thread has kColumns consecutive
// columns of all rows of its block, some rows at a time. It keeps their elements in registers while the block computes the sums over
// whole rows that dx needs, and the columns' sums for dgamma and dbeta until all rows of the block are done. A second kernel adds the
// blocks' sums, a few megabytes. How rows and columns are divided depends only on their numbers, so bits depend neither on the GPU nor
// on the buffers' addresses. A root mean square norm is a layer norm with a mean of 0 and without beta (kCentred false).
namespace mica::cuda {

using namespace arguments;  // NOLINT(google-build-using-namespace)

namespace {

constexpr int kColumns = 8;
/// Columns that a thread accesses at once: all of its own; or one, if the end of a row or an address does not allow that.
using Together = Lanes<kColumns>;
using OneByOne = Lanes<1>;
constexpr int kMostThreads = 1024;
constexpr int kMostWarps = kMostThreads / kWarp;
/// Up to this many threads per block, a thread has registers for two rows, if three such blocks share a multiprocessor.
constexpr int kFewThreads = 256;

/// Minimum number of rows per block, and maximum number of blocks.
constexpr std::int64_t kRowsPerSum = 8;
constexpr std::int64_t kMostSums = 1024;

template <class T>
struct NormGradients {
  const T *dy, *x, *gamma;
  const float *mean, *rstd;
  std::int64_t rows, cols, rows_per_sum;
  T* dx;  // null: not requested; may be dy
  bool accumulate;
  float* sums;  // [blocks, 2 or 1, cols]: dgamma, dbeta; null: not requested

  __device__ std::int64_t begin() const { return static_cast<std::int64_t>(blockIdx.x) * rows_per_sum; }
  __device__ std::int64_t end() const { return begin() + rows_per_sum < rows ? begin() + rows_per_sum : rows; }
};

/// kColumns elements from p on; 0 from index `count` on.
template <class T>
__device__ Packed<T, kColumns> read_columns(const T* p, std::int64_t count, Together) {
  return count > 0 ? *reinterpret_cast<const Packed<T, kColumns>*>(p) : Packed<T, kColumns>{};
}
template <class T>
__device__ Packed<T, kColumns> read_columns(const T* p, std::int64_t count, OneByOne) {
  Packed<T, kColumns> packed{};
#pragma unroll
  for (int l = 0; l < kColumns; ++l) {
    if (l < count) packed.element[l] = p[l];
  }
  return packed;
}
template <class T>
__device__ void write_columns(T* p, std::int64_t count, const Values<kColumns>& values, Together lanes) {
  if (count > 0) store(p, values, lanes);
}
template <class T>
__device__ void write_columns(T* p, std::int64_t count, const Values<kColumns>& values, OneByOne) {
#pragma unroll
  for (int l = 0; l < kColumns; ++l) {
    if (l < count) p[l] = from_float<T>(values.v[l]);
  }
}

/// The values of a whole row that dx needs.
struct RowNorm {
  float mean = 0, rstd = 0;
  float mean_g = 0, mean_gn = 0;  // of g = gamma * dy, and of g * n, n = (x - mean) * rstd

  template <bool kCentred, class T>
  __device__ static RowNorm of(const NormGradients<T>& norm, std::int64_t row) {
    RowNorm r;
    if constexpr (kCentred) r.mean = norm.mean[row];
    r.rstd = norm.rstd[row];
    return r;
  }
  __device__ float normed(float x) const { return (x - mean) * rstd; }
  template <bool kCentred>
  __device__ void add(float x, float dy, float gamma) {
    const float g = gamma * dy;
    if constexpr (kCentred) mean_g += g;
    mean_gn = std::fma(g, normed(x), mean_gn);
  }
  __device__ float dx(float x, float dy, float gamma, float before) const {
    const float g = std::fma(gamma, dy, -mean_g);
    return std::fma(rstd, std::fma(-normed(x), mean_gn, g), before);
  }
};

/// mean_g and mean_gn of kRows rows, from the partial sums of the block's threads. `turn % 2` must alternate: a turn's shared memory is
/// written again two turns later, when all threads have read it.
template <bool kCentred, int kRows>
__device__ void sum_over_block(RowNorm (&rows)[kRows], std::int64_t turn, std::int64_t cols) {
  __shared__ float of_warp[2][kRows * 2][kMostWarps];
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  auto& space = of_warp[turn % 2];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const float gn = reduce_warp(rows[r].mean_gn, Sum{});
    if (lane == 0) space[r * 2][warp] = gn;
    if constexpr (kCentred) {
      const float g = reduce_warp(rows[r].mean_g, Sum{});
      if (lane == 0) space[r * 2 + 1][warp] = g;
    }
  }
  __syncthreads();
  const float inv_cols = 1.0F / static_cast<float>(cols);
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    rows[r].mean_gn = reduce_warp(lane < warps ? space[r * 2][lane] : 0.0F, Sum{}) * inv_cols;
    if constexpr (kCentred) {
      rows[r].mean_g = reduce_warp(lane < warps ? space[r * 2 + 1][lane] : 0.0F, Sum{}) * inv_cols;
    }
  }
}

/// Rows of at most kThreads * kColumns columns.
template <class T, class Reading, bool kCentred, int kThreads>
__global__ void __launch_bounds__(kThreads, kThreads > kFewThreads ? 1 : 3) norm_backward_kernel(NormGradients<T> norm) {
  constexpr Reading access;
  constexpr int kRows = kThreads > kFewThreads ? 1 : 2;
  const std::int64_t j = static_cast<std::int64_t>(threadIdx.x) * kColumns;
  const std::int64_t count = norm.cols - j, end = norm.end();
  const auto gammas = read_columns(norm.gamma + j, count, access);
  Values<kColumns> dgamma{}, dbeta{};

  std::int64_t turn = 0;
  for (std::int64_t first = norm.begin(); first < end; first += kRows, ++turn) {
    Packed<T, kColumns> xs[kRows], dys[kRows], before[kRows] = {};
    RowNorm rows[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const std::int64_t row = first + r < end ? first + r : end - 1;
      xs[r] = read_columns(norm.x + row * norm.cols + j, count, access);
      dys[r] = read_columns(norm.dy + row * norm.cols + j, count, access);
      if (norm.accumulate && norm.dx != nullptr) before[r] = read_columns(norm.dx + row * norm.cols + j, count, access);
      rows[r] = RowNorm::of<kCentred>(norm, row);
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const bool is_there = first + r < end;
#pragma unroll
      for (int l = 0; l < kColumns; ++l) {
        const float x = to_float(xs[r].element[l]), dy = to_float(dys[r].element[l]);
        rows[r].template add<kCentred>(x, dy, to_float(gammas.element[l]));
        if (is_there) dgamma.v[l] = std::fma(dy, rows[r].normed(x), dgamma.v[l]);
        if (kCentred && is_there) dbeta.v[l] += dy;
      }
    }
    if (norm.dx == nullptr) continue;
    sum_over_block<kCentred>(rows, turn, norm.cols);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (first + r >= end) break;
      T* to = norm.dx + (first + r) * norm.cols + j;
      Values<kColumns> dx;
#pragma unroll
      for (int l = 0; l < kColumns; ++l) {
        dx.v[l] = rows[r].dx(to_float(xs[r].element[l]), to_float(dys[r].element[l]), to_float(gammas.element[l]),
                             to_float(before[r].element[l]));
      }
      write_columns(to, count, dx, access);
    }
  }
  if (norm.sums == nullptr) return;
  float* sums = norm.sums + blockIdx.x * (kCentred ? 2 : 1) * norm.cols + j;
  write_columns(sums, count, dgamma, access);
  if constexpr (kCentred) write_columns(sums + norm.cols, count, dbeta, access);
}

/// For rows that do not fit into a block's registers: elements are read twice, the second time from a cache, and the sums of columns are
/// kept in the output memory.
template <class T, class Reading, bool kCentred>
__global__ void __launch_bounds__(kMostThreads) long_norm_backward_kernel(NormGradients<T> norm) {
  constexpr Reading access;
  const std::int64_t first = norm.begin(), end = norm.end();
  const auto for_columns = [&](auto body) {
    for (std::int64_t j = static_cast<std::int64_t>(threadIdx.x) * kColumns; j < norm.cols; j += kMostThreads * kColumns) {
      body(j, norm.cols - j, read_columns(norm.gamma + j, norm.cols - j, access));
    }
  };
  for (std::int64_t row = first; row < end; ++row) {
    const T *x = norm.x + row * norm.cols, *dy = norm.dy + row * norm.cols;
    RowNorm rows[1] = {RowNorm::of<kCentred>(norm, row)};
    for_columns([&](std::int64_t j, std::int64_t count, const Packed<T, kColumns>& gammas) {
      const auto xs = read_columns(x + j, count, access), dys = read_columns(dy + j, count, access);
#pragma unroll
      for (int l = 0; l < kColumns; ++l) {
        rows[0].template add<kCentred>(to_float(xs.element[l]), to_float(dys.element[l]), to_float(gammas.element[l]));
      }
    });
    sum_over_block<kCentred>(rows, row - first, norm.cols);
    for_columns([&](std::int64_t j, std::int64_t count, const Packed<T, kColumns>& gammas) {
      const auto xs = read_columns(x + j, count, access), dys = read_columns(dy + j, count, access);
      Packed<T, kColumns> before{};
      if (norm.accumulate && norm.dx != nullptr) before = read_columns(norm.dx + row * norm.cols + j, count, access);
      float* sums = norm.sums + blockIdx.x * (kCentred ? 2 : 1) * norm.cols + j;
      Packed<float, kColumns> dgamma_before{}, dbeta_before{};
      if (norm.sums != nullptr && row > first) {
        dgamma_before = read_columns(sums, count, access);
        if constexpr (kCentred) dbeta_before = read_columns(sums + norm.cols, count, access);
      }
      Values<kColumns> dx, dgamma, dbeta;
#pragma unroll
      for (int l = 0; l < kColumns; ++l) {
        const float at = to_float(xs.element[l]), slope = to_float(dys.element[l]);
        dx.v[l] = rows[0].dx(at, slope, to_float(gammas.element[l]), to_float(before.element[l]));
        dgamma.v[l] = std::fma(slope, rows[0].normed(at), dgamma_before.element[l]);
        dbeta.v[l] = dbeta_before.element[l] + slope;
      }
      if (norm.dx != nullptr) write_columns(norm.dx + row * norm.cols + j, count, dx, access);
      if (norm.sums == nullptr) return;
      write_columns(sums, count, dgamma, access);
      if constexpr (kCentred) write_columns(sums + norm.cols, count, dbeta, access);
    });
  }
}

struct Operands {
  const char* what;
  ConstTensorView dy, x, gamma, mean, rstd;
  TensorView dx;
  Write dx_mode;
  TensorView dgamma, dbeta;
  Write param_mode;

  [[nodiscard]] std::int64_t rows() const { return x.shape.rows(); }
  [[nodiscard]] std::int64_t cols() const { return x.shape.back(); }
  [[nodiscard]] bool wants_params() const { return dgamma || dbeta; }
  /// The number of rows per block.
  [[nodiscard]] std::int64_t rows_per_sum() const { return std::max(kRowsPerSum, (rows() + kMostSums - 1) / kMostSums); }
  [[nodiscard]] std::int64_t blocks() const { return (rows() + rows_per_sum() - 1) / rows_per_sum(); }
  [[nodiscard]] std::int64_t sums_bytes(int params) const { return wants_params() ? blocks() * params * cols() * 4 : 0; }
};

template <class T, bool kCentred>
auto kernel_for(std::int64_t threads, bool is_together) {
  if (threads > kMostThreads) {
    return is_together ? long_norm_backward_kernel<T, Together, kCentred> : long_norm_backward_kernel<T, OneByOne, kCentred>;
  }
  if (threads > kFewThreads) {
    return is_together ? norm_backward_kernel<T, Together, kCentred, kMostThreads>
                       : norm_backward_kernel<T, OneByOne, kCentred, kMostThreads>;
  }
  return is_together ? norm_backward_kernel<T, Together, kCentred, kFewThreads> : norm_backward_kernel<T, OneByOne, kCentred, kFewThreads>;
}

/// @param space  sums_bytes() bytes
template <bool kCentred>
void enqueue(Stream& s, SlowPaths& slow_paths, const Operands& of, const Buffer& space) {
  const std::int64_t cols = of.cols();
  auto* sums = of.wants_params() ? static_cast<float*>(space.data()) : nullptr;
  if (cols == 0) return;
  if (of.blocks() > 0 && (of.dx || sums)) {
    with_element(of.x.dtype, [&](auto element) {
      using T = decltype(element);
      const NormGradients<T> norm{.dy = static_cast<const T*>(of.dy.data),
                                  .x = static_cast<const T*>(of.x.data),
                                  .gamma = static_cast<const T*>(of.gamma.data),
                                  .mean = static_cast<const float*>(of.mean.data),
                                  .rstd = static_cast<const float*>(of.rstd.data),
                                  .rows = of.rows(),
                                  .cols = cols,
                                  .rows_per_sum = of.rows_per_sum(),
                                  .dx = static_cast<T*>(of.dx.data),
                                  .accumulate = of.dx_mode == Write::accumulate,
                                  .sums = sums};
      const bool is_together = cols % kColumns == 0 && is_aligned(norm.dy, 16) && is_aligned(norm.x, 16) && is_aligned(norm.gamma, 16) &&
                               is_aligned(norm.dx, 16);
      if (!is_together) slow_paths.note_one_by_one(of.what, of.x.shape, of.x.dtype);
      const std::int64_t columns_per_warp = kWarp * kColumns;
      const std::int64_t threads = (cols + columns_per_warp - 1) / columns_per_warp * kWarp;
      const Grid grid{.x = of.blocks(), .threads = static_cast<int>(std::min<std::int64_t>(threads, kMostThreads))};
      launch(s, of.what, {reads(of.dy), reads(of.x), reads(of.gamma), reads(of.mean), reads(of.rstd), mica::writes(of.dx), writes(space)},
             grid, kernel_for<T, kCentred>(threads, is_together), norm);
    });
  }
  const BlockSums left{.space = space, .num = of.blocks(), .rows = kCentred ? 2 : 1, .cols = cols};
  fold_sums(s, of.what, left, of.dgamma, of.dbeta, of.param_mode);
}

}  // namespace

void CudaKernels::layer_norm_backward(Stream& s, ConstTensorView dy, ConstTensorView x, ConstTensorView gamma, ConstTensorView mean,
                                      ConstTensorView rstd, TensorView dx, Write dx_mode, TensorView dgamma, TensorView dbeta,
                                      Write param_mode) {
  check_layer_norm_backward({.dy = dy, .x = x, .gamma = gamma, .mean = mean, .rstd = rstd, .dx = dx, .dgamma = dgamma, .dbeta = dbeta});
  const Operands of{"layer_norm_backward", dy, x, gamma, mean, rstd, dx, dx_mode, dgamma, dbeta, param_mode};
  enqueue<true>(s, slow_paths_, of, scratch(s, of.sums_bytes(2)));
}

void CudaKernels::rms_norm_backward(Stream& s, ConstTensorView dy, ConstTensorView x, ConstTensorView gamma, ConstTensorView rstd,
                                    TensorView dx, Write dx_mode, TensorView dgamma, Write param_mode) {
  check_rms_norm_backward({.dy = dy, .x = x, .gamma = gamma, .rstd = rstd, .dx = dx, .dgamma = dgamma});
  const Operands of{"rms_norm_backward", dy, x, gamma, {}, rstd, dx, dx_mode, dgamma, {}, param_mode};
  enqueue<false>(s, slow_paths_, of, scratch(s, of.sums_bytes(1)));
}

}  // namespace mica::cuda
