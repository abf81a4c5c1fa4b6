// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "mica/tensor/loss_scale.hpp"

#include "../arguments.hpp"
#include "cuda_kernels.hpp"
#include "reduce.hpp"
#include "vectors.hpp"

namespace mica::cuda {

using namespace arguments;  // NOLINT(google-build-using-namespace)

namespace {

/// Elements of one block's partial sum. This and the order in which threads add are fixed: a norm depends neither on the GPU nor on
/// the array's address.
constexpr std::int64_t kSumBlock = 16384;

enum class Power : std::uint8_t { one, two, any, maximum };

__device__ double term(Power power, double p, double x) {
  switch (power) {
    case Power::two:
      return x * x;
    case Power::any:
      return std::pow(std::abs(x), p);
    default:
      return std::abs(x);
  }
}
__device__ double combine(Power power, double a, double b) { return power == Power::maximum ? element::max_or_nan(a, b) : a + b; }
__device__ double reduce_block(Power power, double value) {
  return power == Power::maximum ? cuda::reduce_block<kBlockThreads>(value, Max{}) : cuda::reduce_block<kBlockThreads>(value, Sum{});
}

/// partial[b] = the sum over elements [b * kSumBlock, (b + 1) * kSumBlock).
template <class T, Power kPower>
__global__ void power_sum_kernel(const T* x, std::int64_t n, double p, bool is_aligned, double* partial) {
  constexpr int kCount = kLanes<T>;
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x) * kSumBlock;
  const std::int64_t end = begin + kSumBlock < n ? begin + kSumBlock : n;
  double sum = 0;
  for (std::int64_t i = begin + threadIdx.x * kCount; i < end; i += kBlockThreads * kCount) {
    if (is_aligned && i + kCount <= end) {
      const auto values = load(x + i, Lanes<kCount>{});
#pragma unroll
      for (int l = 0; l < kCount; ++l) sum = combine(kPower, sum, term(kPower, p, static_cast<double>(values.v[l])));
    } else {
      const std::int64_t last = i + kCount < end ? i + kCount : end;
      for (std::int64_t j = i; j < last; ++j) {
        sum = combine(kPower, sum, term(kPower, p, static_cast<double>(to_float(x[j]))));
      }
    }
  }
  sum = reduce_block(kPower, sum);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

/// One block.
__global__ void fold_partials_kernel(const double* partial, std::int64_t count, Power power, float* out, bool accumulate) {
  double sum = 0;
  for (std::int64_t i = threadIdx.x; i < count; i += kBlockThreads) sum = combine(power, sum, partial[i]);
  sum = reduce_block(power, sum);
  if (threadIdx.x == 0) *out = static_cast<float>(accumulate ? combine(power, static_cast<double>(*out), sum) : sum);
}

__global__ void clip_coefficient_kernel(const float* sum, Power power, double p, double max_norm, float* norm, float* coefficient) {
  if (threadIdx.x != 0) return;
  const auto total = static_cast<double>(*sum);
  const double value = power == Power::maximum ? total : power == Power::two ? std::sqrt(total) : std::pow(total, 1.0 / p);
  *norm = static_cast<float>(value);
  // Not fmin: a NaN norm must give a NaN coefficient.
  const double ratio = max_norm / (value + 1e-6);
  *coefficient = std::isinf(max_norm) || ratio > 1.0 ? 1.0F : static_cast<float>(ratio);
}

template <class T>
__global__ void unscale_kernel(Cut cut, T* x, const float* scale, float* found_inf) {
  const auto inverse = static_cast<float>(1.0 / static_cast<double>(*scale));
  bool is_overflow = false;
  for_elements<kLanes<T>>(cut, [&](std::int64_t i, auto lanes) {
    const auto values = load(x + i, lanes);
    store_each(x + i, lanes, [&](int l) {
      is_overflow |= !std::isfinite(values.v[l]);
      return values.v[l] * inverse;
    });
  });
  if (is_overflow) *found_inf = 1.0F;  // several threads may write the same value
}

struct Scale {
  float *scale, *growth_tracker, *skipped_steps;
  const float* found_inf;
  float growth_factor, backoff_factor, growth_interval;
};
__global__ void update_scale_kernel(Scale s) {
  if (threadIdx.x != 0) return;
  if (*s.found_inf != 0.0F) {
    *s.scale = fmaxf(*s.scale * s.backoff_factor, fminf(*s.scale, kLeastLossScale));
    *s.growth_tracker = 0;
    *s.skipped_steps += 1;
    return;
  }
  const float steps = *s.growth_tracker + 1;
  const bool grows = steps >= s.growth_interval;
  *s.growth_tracker = grows ? 0 : steps;
  const float grown = *s.scale * s.growth_factor;
  if (grows && std::isfinite(grown)) *s.scale = grown;
}

Power power_of(double p) { return p == kInfNorm ? Power::maximum : p == 1 ? Power::one : p == 2 ? Power::two : Power::any; }

constexpr Grid kOneWarp{.threads = kWarp};

}  // namespace

void CudaKernels::power_sum(Stream& s, ConstTensorView x, double p, TensorView out, Write mode) {
  const std::int64_t n = x.numel();
  expect("power_sum", "x", x, n, kFloats);
  expect("power_sum", "out", out, 1, {DType::f32});
  require(p > 0, "power_sum: p is {}, expected more than 0", p);
  const std::int64_t blocks = (n + kSumBlock - 1) / kSumBlock;
  const Buffer space = scratch(s, blocks * static_cast<std::int64_t>(sizeof(double)));
  auto* partial = static_cast<double*>(space.data());
  if (blocks > 0) {
    with_element(x.dtype, [&](auto element) {
      using T = decltype(element);
      const auto enqueue = [&](auto kernel) {
        launch(s, "power_sum", {reads(x), writes(space)}, Grid{blocks}, kernel, static_cast<const T*>(x.data), n, p, is_aligned(x.data, 16),
               partial);
      };
      switch (power_of(p)) {
        case Power::one:
          return enqueue(power_sum_kernel<T, Power::one>);
        case Power::two:
          return enqueue(power_sum_kernel<T, Power::two>);
        case Power::any:
          return enqueue(power_sum_kernel<T, Power::any>);
        case Power::maximum:
          return enqueue(power_sum_kernel<T, Power::maximum>);
      }
    });
  }
  launch(s, "power_sum", {writes(space), mica::writes(out)}, Grid{}, fold_partials_kernel, partial, blocks, power_of(p),
         static_cast<float*>(out.data), mode == Write::accumulate);
}

void CudaKernels::clip_coefficient(Stream& s, ConstTensorView sum, double p, double max_norm, TensorView norm, TensorView coefficient) {
  expect("clip_coefficient", "sum", sum, 1, {DType::f32});
  expect("clip_coefficient", "norm", norm, 1, {DType::f32});
  expect("clip_coefficient", "coefficient", coefficient, 1, {DType::f32});
  launch(s, "clip_coefficient", {reads(sum), mica::writes(norm), mica::writes(coefficient)}, kOneWarp, clip_coefficient_kernel,
         static_cast<const float*>(sum.data), power_of(p), p, max_norm, static_cast<float*>(norm.data),
         static_cast<float*>(coefficient.data));
}

void CudaKernels::unscale(Stream& s, TensorView x, ConstTensorView scale, TensorView found_inf) {
  const std::int64_t n = x.numel();
  expect("unscale", "x", x, n, kFloats);
  expect("unscale", "scale", scale, 1, {DType::f32});
  expect("unscale", "found_inf", found_inf, 1, {DType::f32});
  if (n == 0) return;
  with_element(x.dtype, [&](auto element) {
    using T = decltype(element);
    auto* to = static_cast<T*>(x.data);
    const Cut range = cut<kLanes<T>>(n, to);
    launch(s, "unscale", {mica::writes(x), reads(scale), mica::writes(found_inf)}, range.grid(kLanes<T>), unscale_kernel<T>, range, to,
           static_cast<const float*>(scale.data), static_cast<float*>(found_inf.data));
  });
}

void CudaKernels::update_scale(Stream& s, const ScaleUpdateArgs& args) {
  expect("update_scale", "scale", args.scale, 1, {DType::f32});
  expect("update_scale", "growth_tracker", args.growth_tracker, 1, {DType::f32});
  expect("update_scale", "skipped_steps", args.skipped_steps, 1, {DType::f32});
  expect("update_scale", "found_inf", args.found_inf, 1, {DType::f32});
  const Scale scale{.scale = static_cast<float*>(args.scale.data),
                    .growth_tracker = static_cast<float*>(args.growth_tracker.data),
                    .skipped_steps = static_cast<float*>(args.skipped_steps.data),
                    .found_inf = static_cast<const float*>(args.found_inf.data),
                    .growth_factor = static_cast<float>(args.growth_factor),
                    .backoff_factor = static_cast<float>(args.backoff_factor),
                    .growth_interval = static_cast<float>(args.growth_interval)};
  launch(s, "update_scale",
         {mica::writes(args.scale), mica::writes(args.growth_tracker), mica::writes(args.skipped_steps), reads(args.found_inf)}, kOneWarp,
         update_scale_kernel, scale);
}

}  // namespace mica::cuda
