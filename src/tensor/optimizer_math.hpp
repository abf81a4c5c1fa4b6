// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>

#include "mica/core/host_device.hpp"
#include "mica/tensor/kernels.hpp"

// What an optimizer does to one element, written once for scalars, vectors and devices (`Math` as in element_math.hpp).
// Memory-bound: without fused multiply-adds, so that every instruction set and device gives the same parameters.
namespace mica {

/// Constants of one AdamW step, made in double.
struct AdamWCoefficients {
  float decay = 1;  // 1 - lr * weight_decay
  float one_minus_beta1 = 0;
  float beta2 = 0;
  float one_minus_beta2 = 0;
  float inv_sqrt_bias2 = 1;  // 1 / sqrt(1 - beta2^step)
  float step_size = 0;       // lr / (1 - beta1^step)
  float eps = 0;
  float grad_scale = 1;
};

/// @param options        AdamWArgs, or what else has its numbers
/// @param skipped_steps  taken off options.step
template <class Options>
[[nodiscard]] MICA_HOST_DEVICE inline AdamWCoefficients adamw_coefficients(const Options& options, float grad_scale,
                                                                           float skipped_steps = 0) {
  const double step = static_cast<double>(options.step) - static_cast<double>(skipped_steps);
  const double bias1 = 1 - std::pow(options.beta1, step);
  const double bias2 = 1 - std::pow(options.beta2, step);
  return {.decay = static_cast<float>(1 - options.lr * options.weight_decay),
          .one_minus_beta1 = static_cast<float>(1 - options.beta1),
          .beta2 = static_cast<float>(options.beta2),
          .one_minus_beta2 = static_cast<float>(1 - options.beta2),
          .inv_sqrt_bias2 = static_cast<float>(1 / std::sqrt(bias2)),
          .step_size = static_cast<float>(options.lr / bias1),
          .eps = static_cast<float>(options.eps),
          .grad_scale = grad_scale};
}

/// @param p, m, v  the parameter and its two moments, replaced.  @param grad  before grad_scale
template <class Math, class Float = typename Math::Float>
[[gnu::always_inline]] MICA_HOST_DEVICE inline void adamw_update(const AdamWCoefficients& c, Float grad, Float& p, Float& m, Float& v) {
  const Float g = grad * c.grad_scale;
  m = m + (g - m) * c.one_minus_beta1;
  v = v * c.beta2 + (g * g) * c.one_minus_beta2;
  const Float denominator = Math::sqrt(v) * c.inv_sqrt_bias2 + c.eps;
  p = p * c.decay - (m / denominator) * c.step_size;
}

struct SgdCoefficients {
  float lr = 0;
  float momentum = 0;  // 0: the buffer is not touched and may be null
  float one_minus_dampening = 1;
  float weight_decay = 0;
  float grad_scale = 1;
  bool nesterov = false;
  bool first_step = false;
};

[[nodiscard]] MICA_HOST_DEVICE inline SgdCoefficients sgd_coefficients(const SgdArgs& args, float grad_scale) {
  return {.lr = static_cast<float>(args.lr),
          .momentum = static_cast<float>(args.momentum),
          .one_minus_dampening = static_cast<float>(1 - args.dampening),
          .weight_decay = static_cast<float>(args.weight_decay),
          .grad_scale = grad_scale,
          .nesterov = args.nesterov,
          .first_step = args.first_step};
}

/// Without momentum.
template <class Float>
[[gnu::always_inline]] MICA_HOST_DEVICE inline void sgd_update(const SgdCoefficients& c, Float grad, Float& p) {
  p = p - (grad * c.grad_scale + p * c.weight_decay) * c.lr;
}

/// @param buffer  the momentum buffer, replaced
template <class Float>
[[gnu::always_inline]] MICA_HOST_DEVICE inline void sgd_update(const SgdCoefficients& c, Float grad, Float& p, Float& buffer) {
  const Float d = grad * c.grad_scale + p * c.weight_decay;
  buffer = c.first_step ? d : buffer * c.momentum + d * c.one_minus_dampening;
  p = p - (c.nesterov ? d + buffer * c.momentum : buffer) * c.lr;
}

}  // namespace mica
