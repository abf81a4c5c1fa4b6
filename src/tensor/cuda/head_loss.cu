// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cfloat>

#include "mica/core/rounding.hpp"

#include "cuda_kernels.hpp"
#include "elements.hpp"
#include "product_spec.hpp"

namespace mica::cuda {

using namespace arguments;  // NOLINT(google-build-using-namespace)

// [Note: head and loss on a GPU] Each chunk of rows uses one buffer: cuBLASLt writes the logits, one kernel computes each row's loss
// and gradient, which overwrites the logits in the dtype of `hidden`, and the products for dhidden and dw read the gradient with the
// stride of the logits' rows. The logits are f32 for any dtype, unless that is turned off (CudaKernelsOptions::f32_logits): in bf16, a
// logit of 10 would have an error of 0.03, and so would the row's loss. A gradient is at most 1, so its rounding costs no more than
// that of other activations. A chunk has some thousand rows, so that dhidden has a tile for each multiprocessor, and dw is not read,
// rounded and written more often than necessary.

namespace {

constexpr int kWarp = 32;
/// Blocks on a multiprocessor: while one waits for its warps, the others read.
constexpr int kBlocks = 4;
/// Elements of a row that a thread loads before it waits for any, in packs of 16 bytes next to its neighbours' packs.
constexpr int kPerThread = 16;

/// The largest of some numbers, and the sum of exp(x - largest).
struct Softmax {
  float largest = -FLT_MAX;  // not -infinity, since -infinity - -infinity is NaN
  float sum = 0;
};

__device__ inline Softmax merged(const Softmax& a, const Softmax& b) {
  const float largest = fmaxf(a.largest, b.largest);
  return {largest, a.sum * expf(a.largest - largest) + b.sum * expf(b.largest - largest)};
}

/// Every thread gets the block's result.
__device__ inline Softmax merged_over_block(Softmax mine) {
  __shared__ float largest[kBlockThreads / kWarp], sum[kBlockThreads / kWarp];
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    const float other = __shfl_xor_sync(0xffffffffU, mine.largest, distance);
    mine = merged(mine, {other, __shfl_xor_sync(0xffffffffU, mine.sum, distance)});
  }
  if (threadIdx.x % kWarp == 0) {
    largest[threadIdx.x / kWarp] = mine.largest;
    sum[threadIdx.x / kWarp] = mine.sum;
  }
  __syncthreads();
  Softmax all;
  for (unsigned warp = 0; warp < blockDim.x / kWarp; ++warp) all = merged(all, {largest[warp], sum[warp]});
  return all;
}

template <class L>
struct Rows {
  L* logits;                   // [rows, stride]; then their gradient as T, which ends where the row ends
  std::int64_t stride, vocab;  // stride: a multiple of 16, at least vocab
  const std::int32_t* targets;
  float* losses;
};

/// Offset of a row's gradient from the row's beginning, in elements.
__host__ __device__ constexpr std::int64_t gradient_offset(std::int64_t stride, std::int64_t logit_bytes, std::int64_t gradient_bytes) {
  return stride * logit_bytes / gradient_bytes - stride;
}

/// One round of the block over a row: kPerThread logits per thread. Elements past the vocabulary become -FLT_MAX.
template <class L>
struct Round {
  static constexpr int kPerPack = Pack<L>::kNumel;
  static constexpr int kPacks = kPerThread / kPerPack;
  float x[kPacks][kPerPack];

  __device__ static std::int64_t numel() { return static_cast<std::int64_t>(blockDim.x) * kPerThread; }
  __device__ static std::int64_t place(std::int64_t begin, int pack) {
    return begin + (static_cast<std::int64_t>(pack) * blockDim.x + threadIdx.x) * kPerPack;
  }
  __device__ Round(const L* logits, std::int64_t begin, std::int64_t vocab) {
    Pack<L> packs[kPacks];
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (place(begin, p) < vocab) packs[p] = *reinterpret_cast<const Pack<L>*>(logits + place(begin, p));
    }
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
#pragma unroll
      for (int k = 0; k < kPerPack; ++k) x[p][k] = place(begin, p) + k < vocab ? to_float(packs[p].element[k]) : -FLT_MAX;
    }
  }
};

template <class L>
__device__ Softmax softmax_of_row(const L* logits, std::int64_t vocab) {
  using Logits = Round<L>;
  Softmax softmax;
  for (std::int64_t begin = 0; begin < vocab; begin += Logits::numel()) {
    const Logits round(logits, begin, vocab);
    float largest = softmax.largest;
#pragma unroll
    for (const auto& pack : round.x) {
#pragma unroll
      for (const float x : pack) largest = fmaxf(largest, x);
    }
    softmax.sum *= expf(softmax.largest - largest);
    softmax.largest = largest;
#pragma unroll
    for (int p = 0; p < Logits::kPacks; ++p) {
#pragma unroll
      for (int k = 0; k < Logits::kPerPack; ++k) {
        if (Logits::place(begin, p) + k < vocab) softmax.sum += expf(round.x[p][k] - largest);
      }
    }
  }
  return merged_over_block(softmax);
}

/// One row per block, the last row first, since the end of the product's output is still in the cache. dloss null: no gradient.
/// A target outside the vocabulary makes the row's loss and gradient NaN: an error message would need the host to wait.
template <class L, class T>
__global__ void __launch_bounds__(kBlockThreads, kBlocks) head_loss_rows(Rows<L> rows, double scale, const float* dloss) {
  using Logits = Round<L>;
  const std::int64_t row = static_cast<std::int64_t>(gridDim.x) - 1 - blockIdx.x;
  L* logits = rows.logits + row * rows.stride;
  const std::int64_t target = rows.targets[row];
  const bool is_ignored = target == -1;
  const bool is_token = target >= 0 && target < rows.vocab;
  const float target_logit = is_token ? to_float(logits[target]) : 0;

  Softmax softmax;
  if (!is_ignored) softmax = softmax_of_row(logits, rows.vocab);
  if (threadIdx.x == 0) {
    const float loss = logf(softmax.sum) + (softmax.largest - target_logit);
    rows.losses[row] = is_ignored ? 0.0F : is_token ? loss : nanf("");
  }
  if (dloss == nullptr) return;

  const float factor = is_token ? static_cast<float>(scale * static_cast<double>(*dloss)) : nanf("");
  const float inverse = 1.0F / softmax.sum;
  T* gradients = reinterpret_cast<T*>(logits) + gradient_offset(rows.stride, sizeof(L), sizeof(T));
  // From the end of the row, which is still in the cache. A round overwrites only what this or an earlier round has read, since the
  // gradient ends where the logits end and its elements are not larger.
  for (std::int64_t begin = (rows.vocab - 1) / Logits::numel() * Logits::numel(); begin >= 0; begin -= Logits::numel()) {
    const Logits round(logits, begin, rows.vocab);
    if constexpr (sizeof(T) < sizeof(L)) __syncthreads();
#pragma unroll
    for (int p = 0; p < Logits::kPacks; ++p) {
      const std::int64_t i = Logits::place(begin, p);
      struct alignas(Logits::kPerPack * sizeof(T)) {
        T element[Logits::kPerPack];
      } gradient;
#pragma unroll
      for (int k = 0; k < Logits::kPerPack; ++k) {
        const float probability = expf(round.x[p][k] - softmax.largest) * inverse;
        const float g = (i + k == target ? probability - 1.0F : probability) * factor;
        gradient.element[k] = from_float<T>(is_ignored || i + k >= rows.vocab ? 0.0F : g);
      }
      if (i < rows.vocab) *reinterpret_cast<decltype(gradient)*>(gradients + i) = gradient;
    }
  }
}

/// loss = scale * sum of all rows' losses, by one block.
__global__ void sum_losses(const float* losses, std::int64_t rows, double scale, float* loss) {
  __shared__ double sums[kBlockThreads];
  double sum = 0;
  for (std::int64_t row = threadIdx.x; row < rows; row += kBlockThreads) sum += losses[row];
  sums[threadIdx.x] = sum;
  for (unsigned count = kBlockThreads / 2; count > 0; count /= 2) {
    __syncthreads();
    if (threadIdx.x < count) sums[threadIdx.x] += sums[threadIdx.x + count];
  }
  if (threadIdx.x == 0) *loss = static_cast<float>(scale * sums[0]);
}

}  // namespace

void CudaKernels::head(Stream& s, const char* what, const HeadTensors& t, double scale, Write dw_mode) {
  const HeadDims dims = check_head(what, t);
  const std::int64_t m = dims.rows, vocab = dims.vocab, width = dims.width;
  if (m == 0) {
    if (t.loss) fill(s, t.loss, 0.0);
    if (t.dw && dw_mode == Write::overwrite) fill(s, t.dw, 0.0);
    return;
  }
  const DType dtype = t.hidden.dtype;
  const DType logits_dtype = options_.f32_logits ? DType::f32 : dtype;
  const std::int64_t logit_bytes = dtype_bytes(logits_dtype), gradient_bytes = dtype_bytes(dtype);
  const std::int64_t stride = round_up(vocab, 16);
  std::int64_t chunk = std::min(m, std::max<std::int64_t>(1, options_.logits_bytes / (logit_bytes * stride)));
  if (chunk < m && chunk > 128) chunk = chunk / 128 * 128;
  const std::int64_t gradient_stride = stride * logit_bytes / gradient_bytes;
  const std::int64_t offset = gradient_offset(stride, logit_bytes, gradient_bytes);
  const bool has_gradients = t.dhidden || t.dw;
  const Buffer logits_space = scratch(s, chunk * stride * logit_bytes);
  const Buffer losses = scratch(s, m * 4);

  for (std::int64_t begin = 0; begin < m; begin += chunk) {
    const std::int64_t rows = std::min(chunk, m - begin);
    const ConstTensorView hidden = t.hidden.slice(begin * width, rows * width);
    const TensorView logits(logits_space.data(), Shape{rows, stride}, logits_dtype);
    multiply(s, what, {.m = rows, .n = vocab, .k = width, .lda = width, .ldb = width, .ldc = stride, .transposed_b = true}, hidden, t.w, {},
             logits, Write::overwrite);

    const auto* dloss = has_gradients ? t.dloss.as<float>() : nullptr;
    const auto launch_rows = [&](auto logit, auto element) {
      using L = decltype(logit);
      using T = decltype(element);
      const Rows<L> of{static_cast<L*>(logits.data), stride, vocab, t.targets.as<std::int32_t>() + begin,
                       static_cast<float*>(losses.data()) + begin};
      launch(s, what, {reads(t.targets), reads(t.dloss), mica::writes(logits), writes(losses)}, Grid{.x = rows}, head_loss_rows<L, T>, of,
             scale, dloss);
    };
    with_element(dtype, [&](auto element) {
      if (logits_dtype == dtype) return launch_rows(element, element);
      launch_rows(float{}, element);
    });
    const ConstTensorView gradient =
        ConstTensorView(logits.data, Shape{rows * gradient_stride}, dtype).slice(offset, rows * gradient_stride - offset);
    if (t.dhidden) {
      multiply(s, what, {.m = rows, .n = width, .k = vocab, .lda = gradient_stride, .ldb = width, .ldc = width}, gradient, t.w, {},
               t.dhidden.slice(begin * width, rows * width), Write::overwrite);
    }
    if (t.dw) {
      multiply(s, what, {.m = vocab, .n = width, .k = rows, .lda = gradient_stride, .ldb = width, .ldc = width, .transposed_a = true},
               gradient, hidden, {}, t.dw, begin == 0 ? dw_mode : Write::accumulate);
    }
  }
  if (!t.loss) return;
  launch(s, what, {reads(losses.data(), losses.bytes()), mica::writes(t.loss)}, Grid{}, sum_losses,
         static_cast<const float*>(losses.data()), m, scale, t.loss.as<float>());
}

void CudaKernels::head_loss(Stream& s, ConstTensorView hidden, ConstTensorView w, ConstTensorView targets, double scale, TensorView loss) {
  head(s, "head_loss", {.hidden = hidden, .w = w, .targets = targets, .loss = loss}, scale, Write::overwrite);
}

void CudaKernels::head_loss_backward(Stream& s, ConstTensorView hidden, ConstTensorView w, ConstTensorView targets, double scale,
                                     ConstTensorView dloss, TensorView loss, TensorView dhidden, TensorView dw, Write dw_mode,
                                     RowTurns* turns) {
  require(turns == nullptr, "head_loss_backward: gradients are written in turns on a CPU only");
  head(s, "head_loss_backward", {hidden, w, targets, dloss, loss, dhidden, dw}, scale, dw_mode);
}

}  // namespace mica::cuda
