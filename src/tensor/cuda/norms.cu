// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "../layer_arguments.hpp"
#include "cuda_kernels.hpp"
#include "reduce.hpp"
#include "vectors.hpp"

// Layer norm and root mean square norm: the second is the first with a mean of 0 and without beta (kCentred false).
// kGroup threads process a row: a warp, or a whole block for long rows. A row is read two or three times, from the
// cache except for the first time.
namespace mica::cuda {

using namespace arguments;  // NOLINT(google-build-using-namespace)

namespace {

constexpr int kWarps = kBlockThreads / kWarp;
/// From this many columns on, a block processes a row.
constexpr std::int64_t kLongRow = 2048;

template <int kGroup>
__device__ float reduce_group(float value) {
  if constexpr (kGroup == kWarp) {
    return reduce_warp(value, Sum{});
  } else {
    return reduce_block<kGroup>(value, Sum{});
  }
}

/// The rows of a block, kBlockThreads / kGroup at a time: body(row, thread of the group, whether there is such a row).
/// All threads make the same number of turns, because reductions need all of them; surplus turns repeat the last row.
template <int kGroup, class Body>
__device__ void for_rows(std::int64_t rows, Body body) {
  constexpr int kRows = kBlockThreads / kGroup;
  const int thread = static_cast<int>(threadIdx.x) % kGroup;
  for (std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kRows; first < rows;
       first += static_cast<std::int64_t>(gridDim.x) * kRows) {
    const std::int64_t row = first + threadIdx.x / kGroup;
    body(row < rows ? row : rows - 1, thread, row < rows);
  }
}

/// x from memory; or, with kSum, x = a + b, computed when an element is first read. x may be a or b.
template <class T>
struct NormInput {
  const T *a, *b;  // kSum only
  T* x;
};

/// Elements x[i...] when first read. Later each is read by the same thread.
template <bool kSum, class T, int kCount>
__device__ Values<kCount> first_read(const NormInput<T>& in, std::int64_t i, bool is_there, Lanes<kCount> lanes) {
  if constexpr (!kSum) return load(in.x + i, lanes);
  Values<kCount> sum = load(in.a + i, lanes);
  const auto bs = load(in.b + i, lanes);
#pragma unroll
  for (int l = 0; l < kCount; ++l) sum.v[l] = to_float(from_float<T>(sum.v[l] + bs.v[l]));
  if (is_there) store(in.x + i, sum, lanes);
  return sum;
}

template <class T, int kCount, int kGroup, bool kCentred, bool kSum>
__global__ void norm_kernel(NormInput<T> in, const T* gamma, const T* beta, float eps, std::int64_t rows, std::int64_t cols, T* y,
                            float* mean, float* rstd) {
  constexpr Lanes<kCount> lanes;
  const float inv_cols = 1.0F / static_cast<float>(cols);
  for_rows<kGroup>(rows, [&](std::int64_t row, int thread, bool is_there) {
    const T* from = in.x + row * cols;
    float m = 0;
    if constexpr (kCentred) {
      for (std::int64_t j = thread * kCount; j < cols; j += kGroup * kCount) {
        const auto xs = first_read<kSum>(in, row * cols + j, is_there, lanes);
#pragma unroll
        for (int l = 0; l < kCount; ++l) m += xs.v[l];
      }
      m = reduce_group<kGroup>(m) * inv_cols;
    }
    float square = 0;
    for (std::int64_t j = thread * kCount; j < cols; j += kGroup * kCount) {
      const auto xs = first_read < kSum && !kCentred > (in, row * cols + j, is_there, lanes);
#pragma unroll
      for (int l = 0; l < kCount; ++l) square = std::fma(xs.v[l] - m, xs.v[l] - m, square);
    }
    const float r = 1.0F / std::sqrt(std::fma(reduce_group<kGroup>(square), inv_cols, eps));
    if (!is_there) return;
    for (std::int64_t j = thread * kCount; j < cols; j += kGroup * kCount) {
      const auto xs = load(from + j, lanes), gs = load(gamma + j, lanes);
      if constexpr (kCentred) {
        const auto bs = load(beta + j, lanes);
        store_each(y + row * cols + j, lanes, [&](int l) { return std::fma((xs.v[l] - m) * r, gs.v[l], bs.v[l]); });
      } else {
        store_each(y + row * cols + j, lanes, [&](int l) { return xs.v[l] * r * gs.v[l]; });
      }
    }
    if (thread == 0 && kCentred && mean != nullptr) mean[row] = m;
    if (thread == 0 && rstd != nullptr) rstd[row] = r;
  });
}

/// A norm's operands.
struct Norm {
  ConstTensorView x, gamma, beta{};
  std::int64_t rows, cols;
  ConstTensorView a{}, b{};  // x is computed as their sum; absent: x is given
  Norm(ConstTensorView x_, ConstTensorView gamma_) : x(x_), gamma(gamma_), rows(x.shape.rows()), cols(x.shape.back()) {}

  [[nodiscard]] Grid grid() const {
    const std::int64_t rows_per_block = cols >= kLongRow ? 1 : kWarps;
    return {std::min<std::int64_t>((rows + rows_per_block - 1) / rows_per_block, 8192)};
  }
  /// Whether rows can be read in vectors of `count` elements.
  [[nodiscard]] bool in_vectors(int count, std::initializer_list<const void*> arrays) const {
    return cols % count == 0 && std::ranges::all_of(arrays, [](const void* data) { return is_aligned(data, 16); });
  }
};

template <bool kCentred, bool kSum = false>
void enqueue_norm(Stream& s, SlowPaths& slow_paths, const char* what, const Norm& norm, double eps, TensorView y, TensorView mean,
                  TensorView rstd) {
  if (norm.rows == 0 || norm.cols == 0) return;
  with_element(norm.x.dtype, [&](auto element) {
    using T = decltype(element);
    constexpr int kCount = kLanes<T>;
    const bool in_vectors = norm.in_vectors(kCount, {norm.a.data, norm.b.data, norm.x.data, norm.gamma.data, norm.beta.data, y.data});
    if (!in_vectors) slow_paths.note_one_by_one(what, y.shape, y.dtype);
    const bool is_long = norm.cols >= kLongRow;
    const auto kernel =
        in_vectors ? is_long ? norm_kernel<T, kCount, kBlockThreads, kCentred, kSum> : norm_kernel<T, kCount, kWarp, kCentred, kSum>
        : is_long ? norm_kernel<T, 1, kBlockThreads, kCentred, kSum>
                   : norm_kernel<T, 1, kWarp, kCentred, kSum>;
    const NormInput<T> in{static_cast<const T*>(norm.a.data), static_cast<const T*>(norm.b.data),
                          static_cast<T*>(const_cast<void*>(norm.x.data))};
    const Access x = kSum ? mica::writes(norm.x.data, norm.x.bytes()) : reads(norm.x);
    launch(s, what,
           {reads(norm.a), reads(norm.b), x, reads(norm.gamma), reads(norm.beta), mica::writes(y), mica::writes(mean), mica::writes(rstd)},
           norm.grid(), kernel, in, static_cast<const T*>(norm.gamma.data), static_cast<const T*>(norm.beta.data), static_cast<float>(eps),
           norm.rows, norm.cols, static_cast<T*>(y.data), static_cast<float*>(mean.data), static_cast<float*>(rstd.data));
  });
}

}  // namespace

void CudaKernels::layer_norm(Stream& s, ConstTensorView x, ConstTensorView gamma, ConstTensorView beta, double eps, TensorView y,
                             TensorView mean, TensorView rstd) {
  Norm norm(x, gamma);
  norm.beta = beta;
  check_layer_norm("layer_norm", {.x = x, .gamma = gamma, .beta = beta, .y = y, .mean = mean, .rstd = rstd});
  enqueue_norm<true>(s, slow_paths_, "layer_norm", norm, eps, y, mean, rstd);
}

void CudaKernels::add_layer_norm(Stream& s, ConstTensorView a, ConstTensorView b, TensorView sum, ConstTensorView gamma,
                                 ConstTensorView beta, double eps, TensorView y, TensorView mean, TensorView rstd) {
  Norm norm(sum, gamma);
  norm.beta = beta, norm.a = a, norm.b = b;
  check_norm_sum("add_layer_norm", a, b, sum);
  check_layer_norm("add_layer_norm", {.x = sum, .gamma = gamma, .beta = beta, .y = y, .mean = mean, .rstd = rstd});
  enqueue_norm<true, true>(s, slow_paths_, "add_layer_norm", norm, eps, y, mean, rstd);
}

void CudaKernels::rms_norm(Stream& s, ConstTensorView x, ConstTensorView gamma, double eps, TensorView y, TensorView rstd) {
  const Norm norm(x, gamma);
  check_rms_norm("rms_norm", {.x = x, .gamma = gamma, .y = y, .rstd = rstd});
  enqueue_norm<false>(s, slow_paths_, "rms_norm", norm, eps, y, {}, rstd);
}

void CudaKernels::add_rms_norm(Stream& s, ConstTensorView a, ConstTensorView b, TensorView sum, ConstTensorView gamma, double eps,
                               TensorView y, TensorView rstd) {
  Norm norm(sum, gamma);
  norm.a = a, norm.b = b;
  check_norm_sum("add_rms_norm", a, b, sum);
  check_rms_norm("add_rms_norm", {.x = sum, .gamma = gamma, .y = y, .rstd = rstd});
  enqueue_norm<false, true>(s, slow_paths_, "add_rms_norm", norm, eps, y, {}, rstd);
}

}  // namespace mica::cuda
