// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "mica/tensor/loss_scale.hpp"

#include "../arguments.hpp"
#include "cpu_kernels.hpp"
#include "loops.hpp"

namespace mica::cpu {

using namespace arguments;  // NOLINT(google-build-using-namespace)

namespace {

/// Elements of one partial sum: fixed, so that a norm does not depend on the number of threads.
constexpr std::int64_t kSumBlock = 65536;

/// What moments may be kept in.
constexpr std::initializer_list<DType> kMoments{DType::f32, DType::bf16, DType::moment8};

bool is_skipped(ConstTensorView skip) { return skip && *skip.as<float>() != 0.0F; }
float gradient_scale(ConstTensorView scale) { return scale ? *scale.as<float>() : 1.0F; }

/// NaN if either is: an overflow must not be lost in a maximum.
double max_or_nan(double a, double b) { return std::isnan(a) || a > b ? a : b; }

}  // namespace

void CpuKernels::power_sum(Stream& s, ConstTensorView x, double p, TensorView out, Write mode) {
  const std::int64_t n = x.numel();
  expect("power_sum", "x", x, n, kFloats);
  expect("power_sum", "out", out, 1, {DType::f32});
  require(p > 0, "power_sum: p is {}, expected more than 0", p);
  const std::int64_t blocks = divide_up(n, kSumBlock);
  const Buffer space = scratch(s, blocks * static_cast<std::int64_t>(sizeof(double)));
  enqueue(s, "power_sum", {reads(x), mica::writes(out), writes(space)},
          [x, p, out, mode, n, blocks, partial = static_cast<double*>(space.data())] {
            const bool is_max = p == kInfNorm;
            parallel_ranges(blocks, 1, [&](std::int64_t first, std::int64_t last) {
              for (std::int64_t block = first; block < last; ++block) {
                const std::int64_t begin = block * kSumBlock;
                const std::int64_t end = std::min(n, begin + kSumBlock);
                partial[block] = is_max ? static_cast<double>(loops().abs_max(x.dtype, x.data, begin, end))
                                        : loops().power_sum(x.dtype, x.data, p, begin, end);
              }
            });
            float& result = *out.as<float>();
            double total = mode == Write::accumulate ? static_cast<double>(result) : 0.0;
            for (std::int64_t block = 0; block < blocks; ++block) {
              total = is_max ? max_or_nan(total, partial[block]) : total + partial[block];
            }
            result = static_cast<float>(total);
          });
}

void CpuKernels::clip_coefficient(Stream& s, ConstTensorView sum, double p, double max_norm, TensorView norm, TensorView coefficient) {
  expect("clip_coefficient", "sum", sum, 1, {DType::f32});
  expect("clip_coefficient", "norm", norm, 1, {DType::f32});
  expect("clip_coefficient", "coefficient", coefficient, 1, {DType::f32});
  enqueue(s, "clip_coefficient", {reads(sum), mica::writes(norm), mica::writes(coefficient)}, [sum, p, max_norm, norm, coefficient] {
    const auto total = static_cast<double>(*sum.as<float>());
    const double value = p == kInfNorm ? total : p == 2.0 ? std::sqrt(total) : std::pow(total, 1.0 / p);
    *norm.as<float>() = static_cast<float>(value);
    // Not std::min: a NaN norm must make the coefficient NaN.
    const double ratio = max_norm / (value + 1e-6);
    *coefficient.as<float>() = std::isinf(max_norm) || ratio > 1.0 ? 1.0F : static_cast<float>(ratio);
  });
}

void CpuKernels::unscale(Stream& s, TensorView x, ConstTensorView scale, TensorView found_inf) {
  const std::int64_t n = x.numel();
  expect("unscale", "x", x, n, kFloats);
  expect("unscale", "scale", scale, 1, {DType::f32});
  expect("unscale", "found_inf", found_inf, 1, {DType::f32});
  const std::int64_t blocks = divide_up(n, kSumBlock);
  const Buffer space = scratch(s, blocks * static_cast<std::int64_t>(sizeof(float)));
  enqueue(s, "unscale", {mica::writes(x), reads(scale), mica::writes(found_inf), writes(space)},
          [x, scale, found_inf, n, blocks, largest = static_cast<float*>(space.data())] {
            const auto inverse = static_cast<float>(1.0 / static_cast<double>(*scale.as<float>()));
            parallel_ranges(blocks, 1, [&](std::int64_t first, std::int64_t last) {
              for (std::int64_t block = first; block < last; ++block) {  // read while it is in the cache
                const std::int64_t begin = block * kSumBlock;
                const std::int64_t end = std::min(n, begin + kSumBlock);
                largest[block] = loops().abs_max(x.dtype, x.data, begin, end);
                loops().scale(x.data, x.dtype, inverse, x.data, x.dtype, Write::overwrite, begin, end);
              }
            });
            const auto is_overflow = [](float value) { return !std::isfinite(value); };
            if (std::any_of(largest, largest + blocks, is_overflow)) *found_inf.as<float>() = 1.0F;
          });
}

void CpuKernels::update_scale(Stream& s, const ScaleUpdateArgs& args) {
  expect("update_scale", "scale", args.scale, 1, {DType::f32});
  expect("update_scale", "growth_tracker", args.growth_tracker, 1, {DType::f32});
  expect("update_scale", "skipped_steps", args.skipped_steps, 1, {DType::f32});
  expect("update_scale", "found_inf", args.found_inf, 1, {DType::f32});
  enqueue(s, "update_scale",
          {mica::writes(args.scale), mica::writes(args.growth_tracker), mica::writes(args.skipped_steps), reads(args.found_inf)}, [args] {
            float& scale = *args.scale.as<float>();
            float& tracker = *args.growth_tracker.as<float>();
            if (*args.found_inf.as<float>() != 0.0F) {
              scale = std::max(scale * static_cast<float>(args.backoff_factor), std::min(scale, kLeastLossScale));
              tracker = 0;
              *args.skipped_steps.as<float>() += 1;
              return;
            }
            tracker += 1;
            if (tracker < static_cast<float>(args.growth_interval)) return;
            tracker = 0;
            const float grown = scale * static_cast<float>(args.growth_factor);
            if (std::isfinite(grown)) scale = grown;
          });
}

void CpuKernels::adamw(Stream& s, std::span<const AdamWArgs> list) {
  check_adamw(list, kMoments);
  if (list.empty()) return;
  enqueue(s, "adamw", accesses_of(list), [all = std::vector<AdamWArgs>(list.begin(), list.end())] {
    if (is_skipped(all.front().skip)) return;
    const ConstTensorView skipped = all.front().skipped_steps;
    const float skipped_steps = skipped ? *skipped.as<float>() : 0.0F;
    for (const AdamWArgs& args : all) {
      const AdamWCoefficients coefficients = adamw_coefficients(args, gradient_scale(args.grad_scale), skipped_steps);
      const auto taken_step = static_cast<std::uint32_t>(args.step - static_cast<std::int64_t>(skipped_steps));
      parallel_ranges(args.param.numel(), kElementGrain, [&](std::int64_t begin, std::int64_t end) {
        loops().adamw(coefficients, {args.exp_avg.dtype, taken_step}, args.param.as<float>(), args.grad.as<float>(), args.exp_avg.data,
                      args.exp_avg_sq.data, begin, end);
      });
    }
  });
}

void CpuKernels::sgd(Stream& s, std::span<const SgdArgs> list) {
  check_sgd(list, kMoments);
  if (list.empty()) return;
  enqueue(s, "sgd", accesses_of(list), [all = std::vector<SgdArgs>(list.begin(), list.end())] {
    if (is_skipped(all.front().skip)) return;
    for (const SgdArgs& args : all) {
      const SgdCoefficients coefficients = sgd_coefficients(args, gradient_scale(args.grad_scale));
      parallel_ranges(args.param.numel(), kElementGrain, [&](std::int64_t begin, std::int64_t end) {
        loops().sgd(coefficients, {args.momentum_buffer.dtype}, args.param.as<float>(), args.grad.as<float>(), args.momentum_buffer.data,
                    begin, end);
      });
    }
  });
}

}  // namespace mica::cpu
