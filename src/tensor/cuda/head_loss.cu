#include <algorithm>
#include <cfloat>

#include "cuda_kernels.hpp"
#include "elements.hpp"
#include "product_spec.hpp"

namespace mica::cuda {

using namespace arguments;  // NOLINT(google-build-using-namespace)

// [Note: head and loss on a GPU] A chunk of rows goes through one buffer: cuBLASLt writes the logits as f32, one kernel
// makes of each row its loss and the gradient, which takes the logits' place in the dtype of `hidden`, and the products
// for dhidden and dw read that with the stride of the f32 rows. The logits are f32 whatever the dtype: rounded to bf16
// a logit of 10 would err by 0.03, and so would the loss; a gradient is at most 1 and loses no more by its rounding
// than any other activation's.

namespace {

constexpr int kWarp = 32;
constexpr int kMostThreads = 1024;
constexpr int kPerThread = 4;

/// The largest of some numbers, and the sum of exp(x - largest).
struct Softmax {
  float largest = -FLT_MAX;  // not -infinity: the difference of two is no number
  float sum = 0;
};

__device__ inline Softmax merged(const Softmax& a, const Softmax& b) {
  const float largest = fmaxf(a.largest, b.largest);
  return {largest, a.sum * expf(a.largest - largest) + b.sum * expf(b.largest - largest)};
}

/// Every thread gets the block's.
__device__ inline Softmax merged_over_block(Softmax mine) {
  __shared__ float largest[kMostThreads / kWarp], sum[kMostThreads / kWarp];
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

struct Rows {
  float* logits;               // [rows, stride] f32; their gradient as T in the first half where T has 2 bytes
  std::int64_t stride, vocab;  // stride: a multiple of 16, at least vocab
  const std::int32_t* targets;
  float* losses;
};

/// One row a block. dloss null: no gradient. A target that is no token makes the row's loss and gradient NaN: the host
/// does not wait to name it.
template <class T>
__global__ void __launch_bounds__(kMostThreads) cross_entropy(Rows rows, double scale, const float* dloss) {
  const auto row = static_cast<std::int64_t>(blockIdx.x);
  float* logits = rows.logits + row * rows.stride;
  const std::int64_t target = rows.targets[row];
  const bool is_ignored = target == -1;
  const bool is_token = target >= 0 && target < rows.vocab;
  const std::int64_t step = static_cast<std::int64_t>(blockDim.x) * kPerThread;
  const std::int64_t mine = static_cast<std::int64_t>(threadIdx.x) * kPerThread;
  const float target_logit = is_token ? logits[target] : 0;

  Softmax softmax;
  if (!is_ignored) {
    for (std::int64_t i = mine; i < rows.vocab; i += step) {
      const Pack<float> x = *reinterpret_cast<const Pack<float>*>(logits + i);
      float largest = softmax.largest;
#pragma unroll
      for (int k = 0; k < kPerThread; ++k) {
        if (i + k < rows.vocab) largest = fmaxf(largest, x.element[k]);
      }
      softmax.sum *= expf(softmax.largest - largest);
      softmax.largest = largest;
#pragma unroll
      for (int k = 0; k < kPerThread; ++k) {
        if (i + k < rows.vocab) softmax.sum += expf(x.element[k] - largest);
      }
    }
    softmax = merged_over_block(softmax);
  }
  if (threadIdx.x == 0) {
    const float loss = logf(softmax.sum) + softmax.largest - target_logit;
    rows.losses[row] = is_ignored ? 0.0F : is_token ? loss : nanf("");
  }
  if (dloss == nullptr) return;

  const float factor = is_token ? static_cast<float>(scale * static_cast<double>(*dloss)) : nanf("");
  const float inverse = 1.0F / softmax.sum;
  T* gradients = reinterpret_cast<T*>(logits);
  // What a round writes lies where this round or an earlier one has read, since no gradient is larger than a logit.
  for (std::int64_t begin = 0; begin < rows.vocab; begin += step) {
    const std::int64_t i = begin + mine;
    struct alignas(kPerThread * sizeof(T)) {
      T element[kPerThread];
    } gradient;
    if (i < rows.vocab) {
      const Pack<float> x = *reinterpret_cast<const Pack<float>*>(logits + i);
#pragma unroll
      for (int k = 0; k < kPerThread; ++k) {
        float g = 0;
        if (!is_ignored && i + k < rows.vocab) {
          const float p = expf(x.element[k] - softmax.largest) * inverse;
          g = (i + k == target ? p - 1.0F : p) * factor;
        }
        gradient.element[k] = from_float<T>(g);
      }
    }
    if constexpr (sizeof(T) < sizeof(float)) __syncthreads();
    if (i < rows.vocab) *reinterpret_cast<decltype(gradient)*>(gradients + i) = gradient;
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

std::int64_t round_up(std::int64_t x, std::int64_t multiple) { return (x + multiple - 1) / multiple * multiple; }

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
  const std::int64_t stride = round_up(vocab, 16);
  std::int64_t chunk = std::min(m, std::max<std::int64_t>(1, options_.logits_bytes / (4 * stride)));
  if (chunk < m && chunk > 128) chunk = chunk / 128 * 128;
  const std::int64_t gradient_stride = stride * 4 / dtype_bytes(dtype);
  const bool has_gradients = t.dhidden || t.dw;
  const Buffer logits_space = scratch(s, chunk * stride * 4);
  const Buffer losses = scratch(s, m * 4);

  for (std::int64_t begin = 0; begin < m; begin += chunk) {
    const std::int64_t rows = std::min(chunk, m - begin);
    const ConstTensorView hidden = t.hidden.slice(begin * width, rows * width);
    const TensorView logits(logits_space.data(), Shape{rows, stride}, DType::f32);
    multiply(s, what,
             {.m = rows, .n = vocab, .k = width, .lda = width, .ldb = width, .ldc = stride, .transposed_b = true},
             hidden, t.w, {}, logits, Write::overwrite);

    const Rows kernel_rows{static_cast<float*>(logits.data), stride, vocab, t.targets.as<std::int32_t>() + begin,
                           static_cast<float*>(losses.data()) + begin};
    const auto* dloss = has_gradients ? t.dloss.as<float>() : nullptr;
    with_element(dtype, [&](auto element) {
      launch(s, what, {reads(t.targets), reads(t.dloss), mica::writes(logits), writes(losses)},
             Grid{.x = rows, .threads = vocab < 8192 ? kBlockThreads : kMostThreads}, cross_entropy<decltype(element)>,
             kernel_rows, scale, dloss);
    });
    const ConstTensorView gradient(logits.data, Shape{rows, gradient_stride}, dtype);
    if (t.dhidden) {
      multiply(s, what, {.m = rows, .n = width, .k = vocab, .lda = gradient_stride, .ldb = width, .ldc = width},
               gradient, t.w, {}, t.dhidden.slice(begin * width, rows * width), Write::overwrite);
    }
    if (t.dw) {
      multiply(
          s, what,
          {.m = vocab, .n = width, .k = rows, .lda = gradient_stride, .ldb = width, .ldc = width, .transposed_a = true},
          gradient, hidden, {}, t.dw, begin == 0 ? dw_mode : Write::accumulate);
    }
  }
  if (!t.loss) return;
  launch(s, what, {reads(losses.data(), losses.bytes()), mica::writes(t.loss)}, Grid{}, sum_losses,
         static_cast<const float*>(losses.data()), m, scale, t.loss.as<float>());
}

void CudaKernels::head_loss(Stream& s, ConstTensorView hidden, ConstTensorView w, ConstTensorView targets, double scale,
                            TensorView loss) {
  head(s, "head_loss", {.hidden = hidden, .w = w, .targets = targets, .loss = loss}, scale, Write::overwrite);
}

void CudaKernels::head_loss_backward(Stream& s, ConstTensorView hidden, ConstTensorView w, ConstTensorView targets,
                                     double scale, ConstTensorView dloss, TensorView loss, TensorView dhidden,
                                     TensorView dw, Write dw_mode) {
  head(s, "head_loss_backward", {hidden, w, targets, dloss, loss, dhidden, dw}, scale, dw_mode);
}

}  // namespace mica::cuda
