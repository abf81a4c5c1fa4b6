// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "../loss_arguments.hpp"
#include "../loss_math.hpp"
#include "cuda_kernels.hpp"
#include "elements.hpp"
#include "reduce.hpp"

namespace mica::cuda {

using namespace arguments;  // NOLINT(google-build-using-namespace)

namespace {

/// Elements of one block's partial sum. Fixed, so that a loss does not depend on the GPU.
constexpr std::int64_t kSumBlock = 16384;

/// partial[b] = the sum over elements [b * kSumBlock, (b + 1) * kSumBlock).
template <class X, class Target>
__global__ void element_loss_kernel(ElementLoss f, const X* x, const Target* targets, std::int64_t n, double* partial) {
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x) * kSumBlock;
  const std::int64_t end = begin + kSumBlock < n ? begin + kSumBlock : n;
  double sum = 0;
  for (std::int64_t i = begin + threadIdx.x; i < end; i += kBlockThreads) {
    sum += element::loss(f, static_cast<double>(to_float(x[i])), static_cast<double>(to_float(targets[i])));
  }
  sum = reduce_block<kBlockThreads>(sum, Sum{});
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

/// One block.
__global__ void mean_of_partials_kernel(const double* partial, std::int64_t count, std::int64_t n, float* loss) {
  double sum = 0;
  for (std::int64_t i = threadIdx.x; i < count; i += kBlockThreads) sum += partial[i];
  sum = reduce_block<kBlockThreads>(sum, Sum{});
  if (threadIdx.x == 0) *loss = static_cast<float>(sum / static_cast<double>(n));
}

template <class X, class Target>
__global__ void element_loss_backward_kernel(ElementLoss f, const X* x, const Target* targets, std::int64_t n, const float* dloss, X* dx) {
  const double factor = static_cast<double>(*dloss) / static_cast<double>(n);
  const std::int64_t threads = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += threads) {
    dx[i] = from_float<X>(static_cast<float>(
        factor * element::loss_derivative(f, static_cast<double>(to_float(x[i])), static_cast<double>(to_float(targets[i])))));
  }
}

/// Rows of logits; a block per row.
template <class T>
struct ClassRows {
  const T* logits;  // [rows, classes]
  std::int64_t classes;
  const std::int32_t* targets;
  std::int32_t ignored;
};

struct RowSoftmax {
  float largest, sum;  // sum: of exp(x - largest)
};

/// Every thread of the block gets the result.
template <class T>
__device__ RowSoftmax softmax_of_row(const T* row, std::int64_t classes) {
  float largest = -INFINITY;
  for (std::int64_t c = threadIdx.x; c < classes; c += kBlockThreads) largest = Max{}(largest, to_float(row[c]));
  largest = reduce_block<kBlockThreads>(largest, Max{});
  float sum = 0;
  for (std::int64_t c = threadIdx.x; c < classes; c += kBlockThreads) sum += expf(to_float(row[c]) - largest);
  return {largest, reduce_block<kBlockThreads>(sum, Sum{})};
}

template <class T>
__global__ void cross_entropy_kernel(ClassRows<T> rows, float* losses) {
  const std::int64_t row = blockIdx.x;
  const std::int32_t target = rows.targets[row];
  const bool is_class = target >= 0 && target < rows.classes;
  const T* logits = rows.logits + row * rows.classes;
  const RowSoftmax softmax = softmax_of_row(logits, rows.classes);
  if (threadIdx.x != 0) return;
  losses[row] = target == rows.ignored ? 0.0F : is_class ? logf(softmax.sum) + (softmax.largest - to_float(logits[target])) : nanf("");
}

/// The number of targets that are not ignored. One block; every thread gets the result.
__device__ double count_of(const std::int32_t* targets, std::int32_t ignored, std::int64_t rows) {
  double count = 0;
  for (std::int64_t row = threadIdx.x; row < rows; row += kBlockThreads) count += targets[row] == ignored ? 0 : 1;
  return reduce_block<kBlockThreads>(count, Sum{});
}

/// One block.
__global__ void mean_of_rows_kernel(const float* losses, const std::int32_t* targets, std::int32_t ignored, std::int64_t rows,
                                    float* loss) {
  const double count = count_of(targets, ignored, rows);
  double sum = 0;
  for (std::int64_t row = threadIdx.x; row < rows; row += kBlockThreads) sum += static_cast<double>(losses[row]);
  sum = reduce_block<kBlockThreads>(sum, Sum{});
  if (threadIdx.x == 0) *loss = static_cast<float>(sum / count);
}

/// factor = dloss divided by the number of rows that are not ignored. One block.
__global__ void row_factor_kernel(const std::int32_t* targets, std::int32_t ignored, std::int64_t rows, const float* dloss, float* factor) {
  const double count = count_of(targets, ignored, rows);
  if (threadIdx.x == 0) *factor = static_cast<float>(static_cast<double>(*dloss) / count);
}

/// dlogits may be logits.
template <class T>
__global__ void cross_entropy_backward_kernel(ClassRows<T> rows, const float* row_factor, T* dlogits) {
  const std::int64_t row = blockIdx.x;
  const std::int32_t target = rows.targets[row];
  const bool is_ignored = target == rows.ignored;
  const T* logits = rows.logits + row * rows.classes;
  const RowSoftmax softmax = softmax_of_row(logits, rows.classes);
  const float factor = target >= 0 && target < rows.classes ? *row_factor : nanf("");
  const float inverse = 1.0F / softmax.sum;
  for (std::int64_t c = threadIdx.x; c < rows.classes; c += kBlockThreads) {
    const float p = expf(to_float(logits[c]) - softmax.largest) * inverse;
    dlogits[row * rows.classes + c] = from_float<T>(is_ignored ? 0.0F : (c == target ? p - 1.0F : p) * factor);
  }
}

/// Calls body(x's element, the targets' element).
template <class Body>
void with_outputs(ConstTensorView x, ConstTensorView targets, const Body& body) {
  with_element(x.dtype, [&](auto element) {
    if (targets.dtype == x.dtype) return body(element, element);
    body(element, float{});
  });
}

}  // namespace

void CudaKernels::element_loss(Stream& s, ElementLoss f, ConstTensorView x, ConstTensorView targets, TensorView loss) {
  const std::int64_t n = check_element_loss(x, targets, loss);
  const std::int64_t blocks = (n + kSumBlock - 1) / kSumBlock;
  const Buffer space = scratch(s, blocks * static_cast<std::int64_t>(sizeof(double)));
  auto* partial = static_cast<double*>(space.data());
  if (n > 0) {
    with_outputs(x, targets, [&](auto output, auto target) {
      using X = decltype(output);
      using Target = decltype(target);
      launch(s, "element_loss", {reads(x), reads(targets), writes(space)}, Grid{.x = blocks}, element_loss_kernel<X, Target>, f,
             static_cast<const X*>(x.data), static_cast<const Target*>(targets.data), n, partial);
    });
  }
  launch(s, "element_loss", {writes(space), mica::writes(loss)}, Grid{}, mean_of_partials_kernel, partial, blocks, n, loss.as<float>());
}

void CudaKernels::element_loss_backward(Stream& s, ElementLoss f, ConstTensorView x, ConstTensorView targets, ConstTensorView dloss,
                                        TensorView dx) {
  const std::int64_t n = check_element_loss_backward(x, targets, dloss, dx);
  if (n == 0) return;
  with_outputs(x, targets, [&](auto output, auto target) {
    using X = decltype(output);
    using Target = decltype(target);
    launch(s, "element_loss_backward", {reads(x), reads(targets), reads(dloss), mica::writes(dx)}, Grid::over(n),
           element_loss_backward_kernel<X, Target>, f, static_cast<const X*>(x.data), static_cast<const Target*>(targets.data), n,
           dloss.as<float>(), static_cast<X*>(dx.data));
  });
}

void CudaKernels::cross_entropy(Stream& s, ConstTensorView logits, ConstTensorView targets, std::int32_t ignored, TensorView loss) {
  const auto [rows, classes] = check_cross_entropy(logits, targets, loss);
  const Buffer space = scratch(s, rows * 4);
  auto* losses = static_cast<float*>(space.data());
  const auto* ids = targets.as<std::int32_t>();
  if (rows > 0) {
    with_element(logits.dtype, [&, rows = rows, classes = classes](auto element) {
      using T = decltype(element);
      launch(s, "cross_entropy", {reads(logits), reads(targets), writes(space)}, Grid{.x = rows}, cross_entropy_kernel<T>,
             ClassRows<T>{static_cast<const T*>(logits.data), classes, ids, ignored}, losses);
    });
  }
  launch(s, "cross_entropy", {reads(targets), writes(space), mica::writes(loss)}, Grid{}, mean_of_rows_kernel, losses, ids, ignored, rows,
         loss.as<float>());
}

void CudaKernels::cross_entropy_backward(Stream& s, ConstTensorView logits, ConstTensorView targets, std::int32_t ignored,
                                         ConstTensorView dloss, TensorView dlogits) {
  const auto [rows, classes] = check_cross_entropy_backward(logits, targets, dloss, dlogits);
  if (rows == 0) return;
  const Buffer space = scratch(s, 4);
  auto* factor = static_cast<float*>(space.data());
  const auto* ids = targets.as<std::int32_t>();
  launch(s, "cross_entropy_backward", {reads(targets), reads(dloss), writes(space)}, Grid{}, row_factor_kernel, ids, ignored, rows,
         dloss.as<float>(), factor);
  with_element(logits.dtype, [&, rows = rows, classes = classes](auto element) {
    using T = decltype(element);
    launch(s, "cross_entropy_backward", {reads(logits), reads(targets), writes(space), mica::writes(dlogits)}, Grid{.x = rows},
           cross_entropy_backward_kernel<T>, ClassRows<T>{static_cast<const T*>(logits.data), classes, ids, ignored}, factor,
           static_cast<T*>(dlogits.data));
  });
}

}  // namespace mica::cuda
