#include <algorithm>
#include <cmath>

#include "../layer_arguments.hpp"
#include "cuda_kernels.hpp"
#include "reduce.hpp"
#include "vectors.hpp"

// Layer norm and root mean square norm: the second is the first with a mean of 0 and without beta (kCentred false).
// A row belongs to kGroup threads: a warp, or a whole block where rows are long. It is read twice or three times, all
// but the first time from the cache.
namespace mica::cuda {

using namespace arguments;  // NOLINT(google-build-using-namespace)

namespace {

constexpr int kWarps = kBlockThreads / kWarp;
/// From so many columns on a block takes a row.
constexpr std::int64_t kLongRow = 2048;
/// Rows of one partial sum of a parameter's gradient, at least; and partial sums at most.
constexpr std::int64_t kRowsPerSum = 64;
constexpr std::int64_t kMostSums = 128;

template <int kGroup>
__device__ float reduce_group(float value) {
  if constexpr (kGroup == kWarp) {
    return reduce_warp(value, Sum{});
  } else {
    return reduce_block<kGroup>(value, Sum{});
  }
}

/// The rows of a block, kBlockThreads / kGroup at a time: body(row, thread of the group, whether there is such a row).
/// All threads make as many turns, so that all of them take part in reductions; what is too many goes over the last
/// row.
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

/// x as it lies there, or made as a + b when its elements are read first (kSum). x may then be a or b.
template <class T>
struct NormInput {
  const T *a, *b;  // kSum only
  T* x;
};

/// Elements x[i...] at their first reading. Each is read again by the thread that read it here.
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
__global__ void norm_kernel(NormInput<T> in, const T* gamma, const T* beta, float eps, std::int64_t rows,
                            std::int64_t cols, T* y, float* mean, float* rstd) {
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
      const auto xs = first_read<kSum && !kCentred>(in, row * cols + j, is_there, lanes);
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

/// dx (+)= rstd * (g - mean(g) - n * mean(g * n)), g = gamma * dy, n = (x - mean) * rstd; mean(g) only if kCentred.
template <class T, int kCount, int kGroup, bool kCentred>
__global__ void norm_backward_kernel(const T* dy, const T* x, const T* gamma, const float* mean, const float* rstd,
                                     std::int64_t rows, std::int64_t cols, T* dx, bool accumulate) {
  constexpr Lanes<kCount> lanes;
  const float inv_cols = 1.0F / static_cast<float>(cols);
  for_rows<kGroup>(rows, [&](std::int64_t row, int thread, bool is_there) {
    const float r = rstd[row];
    float m = 0;
    if constexpr (kCentred) m = mean[row];
    float mean_g = 0, mean_gn = 0;
    for (std::int64_t j = thread * kCount; j < cols; j += kGroup * kCount) {
      const auto dys = load(dy + row * cols + j, lanes), xs = load(x + row * cols + j, lanes),
                 gs = load(gamma + j, lanes);
#pragma unroll
      for (int l = 0; l < kCount; ++l) {
        const float g = gs.v[l] * dys.v[l];
        if constexpr (kCentred) mean_g += g;
        mean_gn = std::fma(g, (xs.v[l] - m) * r, mean_gn);
      }
    }
    if constexpr (kCentred) mean_g = reduce_group<kGroup>(mean_g) * inv_cols;
    mean_gn = reduce_group<kGroup>(mean_gn) * inv_cols;
    if (!is_there) return;
    for (std::int64_t j = thread * kCount; j < cols; j += kGroup * kCount) {
      const auto dys = load(dy + row * cols + j, lanes), xs = load(x + row * cols + j, lanes),
                 gs = load(gamma + j, lanes);
      T* to = dx + row * cols + j;
      Values<kCount> sum{};
      if (accumulate) sum = load(to, lanes);
#pragma unroll
      for (int l = 0; l < kCount; ++l) {
        const float g = std::fma(gs.v[l], dys.v[l], -mean_g);
        sum.v[l] = std::fma(r, std::fma(-(xs.v[l] - m) * r, mean_gn, g), sum.v[l]);
      }
      store(to, sum, lanes);
    }
  });
}

/// sums[blockIdx.y] = [dgamma, dbeta] of rows [blockIdx.y * rows_per_sum, ...), [2, cols] (dgamma alone unless
/// kCentred). A block has kWarp * kCount columns, each of its warps every eighth row.
template <class T, int kCount, bool kCentred>
__global__ void norm_params_kernel(const T* dy, const T* x, const float* mean, const float* rstd, std::int64_t rows,
                                   std::int64_t cols, std::int64_t rows_per_sum, float* sums) {
  constexpr Lanes<kCount> lanes;
  constexpr int kParams = kCentred ? 2 : 1;
  __shared__ float of_warp[kParams][kWarps][kWarp * kCount];
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const std::int64_t first_col = static_cast<std::int64_t>(blockIdx.x) * kWarp * kCount;
  const std::int64_t j = first_col + lane * kCount;
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.y) * rows_per_sum;
  const std::int64_t end = begin + rows_per_sum < rows ? begin + rows_per_sum : rows;

  Values<kCount> dgamma{}, dbeta{};
  if (j < cols) {
#pragma unroll 4
    for (std::int64_t row = begin + warp; row < end; row += kWarps) {
      const auto dys = load(dy + row * cols + j, lanes), xs = load(x + row * cols + j, lanes);
      float m = 0;
      if constexpr (kCentred) m = mean[row];
      const float r = rstd[row];
#pragma unroll
      for (int l = 0; l < kCount; ++l) {
        dgamma.v[l] = std::fma(dys.v[l], (xs.v[l] - m) * r, dgamma.v[l]);
        if constexpr (kCentred) dbeta.v[l] += dys.v[l];
      }
    }
  }
#pragma unroll
  for (int l = 0; l < kCount; ++l) {
    of_warp[0][warp][l * kWarp + lane] = dgamma.v[l];
    if constexpr (kCentred) of_warp[kParams - 1][warp][l * kWarp + lane] = dbeta.v[l];
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kParams * kWarp * kCount; i += kBlockThreads) {
    const int param = i / (kWarp * kCount), at = i % (kWarp * kCount);
    const std::int64_t col = first_col + at % kWarp * kCount + at / kWarp;
    float sum = 0;
    for (int w = 0; w < kWarps; ++w) sum += of_warp[param][w][at];
    if (col < cols) sums[(blockIdx.y * kParams + param) * cols + col] = sum;
  }
}

/// dparam[j] (+)= sums[0, j] + sums[1, j] + ..., rows `stride` apart. A block has kWarp columns.
template <class T>
__global__ void fold_params_kernel(const float* sums, int num_sums, std::int64_t stride, std::int64_t cols, T* dparam,
                                   bool accumulate) {
  __shared__ float of_warp[kWarps][kWarp];
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const std::int64_t j = static_cast<std::int64_t>(blockIdx.x) * kWarp + lane;
  float sum = 0;
  if (j < cols) {
#pragma unroll 8
    for (int i = warp; i < num_sums; i += kWarps) sum += sums[i * stride + j];
  }
  of_warp[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || j >= cols) return;
  for (int w = 1; w < kWarps; ++w) sum += of_warp[w][lane];
  dparam[j] = from_float<T>(accumulate ? to_float(dparam[j]) + sum : sum);
}

/// A norm's operands.
struct Norm {
  ConstTensorView x, gamma, beta{};
  std::int64_t rows, cols;
  ConstTensorView a{}, b{};  // x is to be made as their sum; absent: it is there
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
void enqueue_norm(Stream& s, const char* what, const Norm& norm, double eps, TensorView y, TensorView mean,
                  TensorView rstd) {
  if (norm.rows == 0 || norm.cols == 0) return;
  with_element(norm.x.dtype, [&](auto element) {
    using T = decltype(element);
    constexpr int kCount = kLanes<T>;
    const bool in_vectors = norm.in_vectors(
        kCount, {norm.a.data, norm.b.data, norm.x.data, norm.gamma.data, norm.beta.data, y.data});
    const bool is_long = norm.cols >= kLongRow;
    const auto kernel = in_vectors ? is_long ? norm_kernel<T, kCount, kBlockThreads, kCentred, kSum>
                                             : norm_kernel<T, kCount, kWarp, kCentred, kSum>
                        : is_long ? norm_kernel<T, 1, kBlockThreads, kCentred, kSum>
                                   : norm_kernel<T, 1, kWarp, kCentred, kSum>;
    const NormInput<T> in{static_cast<const T*>(norm.a.data), static_cast<const T*>(norm.b.data),
                          static_cast<T*>(const_cast<void*>(norm.x.data))};
    const Access x = kSum ? mica::writes(norm.x.data, norm.x.bytes()) : reads(norm.x);
    launch(s, what,
           {reads(norm.a), reads(norm.b), x, reads(norm.gamma), reads(norm.beta), mica::writes(y), mica::writes(mean),
            mica::writes(rstd)},
           norm.grid(), kernel, in, static_cast<const T*>(norm.gamma.data), static_cast<const T*>(norm.beta.data),
           static_cast<float>(eps), norm.rows, norm.cols, static_cast<T*>(y.data), static_cast<float*>(mean.data),
           static_cast<float*>(rstd.data));
  });
}

template <bool kCentred>
void enqueue_norm_backward(Stream& s, const char* what, const Norm& norm, ConstTensorView dy, ConstTensorView mean,
                           ConstTensorView rstd, TensorView dx, Write mode) {
  if (!dx || norm.rows == 0 || norm.cols == 0) return;
  with_element(norm.x.dtype, [&](auto element) {
    using T = decltype(element);
    constexpr int kCount = kLanes<T>;
    const bool in_vectors = norm.in_vectors(kCount, {norm.x.data, norm.gamma.data, dy.data, dx.data});
    const bool is_long = norm.cols >= kLongRow;
    const auto kernel = in_vectors ? is_long ? norm_backward_kernel<T, kCount, kBlockThreads, kCentred>
                                             : norm_backward_kernel<T, kCount, kWarp, kCentred>
                        : is_long ? norm_backward_kernel<T, 1, kBlockThreads, kCentred>
                                   : norm_backward_kernel<T, 1, kWarp, kCentred>;
    launch(s, what, {reads(dy), reads(norm.x), reads(norm.gamma), reads(mean), reads(rstd), mica::writes(dx)},
           norm.grid(), kernel, static_cast<const T*>(dy.data), static_cast<const T*>(norm.x.data),
           static_cast<const T*>(norm.gamma.data), static_cast<const float*>(mean.data),
           static_cast<const float*>(rstd.data), norm.rows, norm.cols, static_cast<T*>(dx.data),
           mode == Write::accumulate);
  });
}

/// How the rows are cut for the gradients of parameters: by their number alone, so that the bits do not depend on the
/// card.
struct ParamSums {
  std::int64_t rows_per_sum, count;
  explicit ParamSums(std::int64_t rows)
      : rows_per_sum(std::max(kRowsPerSum, (rows + kMostSums - 1) / kMostSums)),
        count((rows + rows_per_sum - 1) / rows_per_sum) {}
};

template <bool kCentred>
void enqueue_norm_params(Stream& s, const char* what, const Norm& norm, ConstTensorView dy, ConstTensorView mean,
                         ConstTensorView rstd, const ParamSums& cut, const Buffer& space, TensorView dgamma,
                         TensorView dbeta, Write mode) {
  constexpr int kParams = kCentred ? 2 : 1;
  const std::int64_t cols = norm.cols;
  auto* sums = static_cast<float*>(space.data());
  if (cut.count > 0) {
    with_element(norm.x.dtype, [&](auto element) {
      using T = decltype(element);
      // Packs of 8 columns would need more shared memory than they gain.
      constexpr int kCount = 4;
      const bool in_vectors = norm.in_vectors(kCount, {norm.x.data, dy.data});
      const std::int64_t columns = kWarp * (in_vectors ? kCount : 1);
      launch(s, what, {reads(dy), reads(norm.x), reads(mean), reads(rstd), writes(space)},
             Grid{(cols + columns - 1) / columns, cut.count},
             in_vectors ? norm_params_kernel<T, kCount, kCentred> : norm_params_kernel<T, 1, kCentred>,
             static_cast<const T*>(dy.data), static_cast<const T*>(norm.x.data), static_cast<const float*>(mean.data),
             static_cast<const float*>(rstd.data), norm.rows, cols, cut.rows_per_sum, sums);
    });
  }
  const auto fold = [&](TensorView dparam, const float* from) {
    if (!dparam) return;
    with_element(dparam.dtype, [&](auto element) {
      using T = decltype(element);
      launch(s, what, {writes(space), mica::writes(dparam)}, Grid{(cols + kWarp - 1) / kWarp}, fold_params_kernel<T>,
             from, cut.count, kParams * cols, cols, static_cast<T*>(dparam.data), mode == Write::accumulate);
    });
  };
  fold(dgamma, sums);
  if constexpr (kCentred) fold(dbeta, sums + cols);
}

}  // namespace

void CudaKernels::layer_norm(Stream& s, ConstTensorView x, ConstTensorView gamma, ConstTensorView beta, double eps,
                             TensorView y, TensorView mean, TensorView rstd) {
  Norm norm(x, gamma);
  norm.beta = beta;
  check_layer_norm("layer_norm", {.x = x, .gamma = gamma, .beta = beta, .y = y, .mean = mean, .rstd = rstd});
  enqueue_norm<true>(s, "layer_norm", norm, eps, y, mean, rstd);
}

void CudaKernels::add_layer_norm(Stream& s, ConstTensorView a, ConstTensorView b, TensorView sum, ConstTensorView gamma,
                                 ConstTensorView beta, double eps, TensorView y, TensorView mean, TensorView rstd) {
  Norm norm(sum, gamma);
  norm.beta = beta, norm.a = a, norm.b = b;
  check_norm_sum("add_layer_norm", a, b, sum);
  check_layer_norm("add_layer_norm", {.x = sum, .gamma = gamma, .beta = beta, .y = y, .mean = mean, .rstd = rstd});
  enqueue_norm<true, true>(s, "add_layer_norm", norm, eps, y, mean, rstd);
}

void CudaKernels::layer_norm_backward(Stream& s, ConstTensorView dy, ConstTensorView x, ConstTensorView gamma,
                                      ConstTensorView mean, ConstTensorView rstd, TensorView dx, Write dx_mode,
                                      TensorView dgamma, TensorView dbeta, Write param_mode) {
  const Norm norm(x, gamma);
  check_layer_norm_backward(
      {.dy = dy, .x = x, .gamma = gamma, .mean = mean, .rstd = rstd, .dx = dx, .dgamma = dgamma, .dbeta = dbeta});
  if (dgamma || dbeta) {  // first: dx may be dy
    const ParamSums cut(norm.rows);
    const Buffer space = scratch(s, cut.count * 2 * norm.cols * 4);
    enqueue_norm_params<true>(s, "layer_norm_backward", norm, dy, mean, rstd, cut, space, dgamma, dbeta, param_mode);
  }
  enqueue_norm_backward<true>(s, "layer_norm_backward", norm, dy, mean, rstd, dx, dx_mode);
}

void CudaKernels::rms_norm(Stream& s, ConstTensorView x, ConstTensorView gamma, double eps, TensorView y,
                           TensorView rstd) {
  const Norm norm(x, gamma);
  check_rms_norm("rms_norm", {.x = x, .gamma = gamma, .y = y, .rstd = rstd});
  enqueue_norm<false>(s, "rms_norm", norm, eps, y, {}, rstd);
}

void CudaKernels::add_rms_norm(Stream& s, ConstTensorView a, ConstTensorView b, TensorView sum, ConstTensorView gamma,
                               double eps, TensorView y, TensorView rstd) {
  Norm norm(sum, gamma);
  norm.a = a, norm.b = b;
  check_norm_sum("add_rms_norm", a, b, sum);
  check_rms_norm("add_rms_norm", {.x = sum, .gamma = gamma, .y = y, .rstd = rstd});
  enqueue_norm<false, true>(s, "add_rms_norm", norm, eps, y, {}, rstd);
}

void CudaKernels::rms_norm_backward(Stream& s, ConstTensorView dy, ConstTensorView x, ConstTensorView gamma,
                                    ConstTensorView rstd, TensorView dx, Write dx_mode, TensorView dgamma,
                                    Write param_mode) {
  const Norm norm(x, gamma);
  check_rms_norm_backward({.dy = dy, .x = x, .gamma = gamma, .rstd = rstd, .dx = dx, .dgamma = dgamma});
  if (dgamma) {  // first: dx may be dy
    const ParamSums cut(norm.rows);
    const Buffer space = scratch(s, cut.count * norm.cols * 4);
    enqueue_norm_params<false>(s, "rms_norm_backward", norm, dy, {}, rstd, cut, space, dgamma, {}, param_mode);
  }
  enqueue_norm_backward<false>(s, "rms_norm_backward", norm, dy, {}, rstd, dx, dx_mode);
}

}  // namespace mica::cuda
