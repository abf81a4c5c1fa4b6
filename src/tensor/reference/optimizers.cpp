// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "mica/tensor/loss_scale.hpp"

#include "reference_kernels.hpp"
#include "values.hpp"

namespace mica::reference {
namespace {
/// The gradient times grad_scale.
Values scaled_gradient(const ConstTensorView& grad, const ConstTensorView& grad_scale) {
  Values g = values(grad);
  const double factor = grad_scale ? scalar(grad_scale) : 1;
  for (double& e : g) e *= factor;
  return g;
}

bool is_skipped(const ConstTensorView& skip) { return skip && scalar(skip) != 0; }
}  // namespace

void ReferenceKernels::power_sum(Stream& s, ConstTensorView x, double p, TensorView out, Write mode) {
  s.submit("power_sum", {reads(x), writes(out)}, [=] {
    const bool is_max = p >= kInfNorm;
    double result = mode == Write::accumulate ? scalar(out) : 0;
    for (const double e : values(x)) {
      if (is_max) {
        result = std::isnan(e) || e == 0 ? result + e : std::max(result, std::abs(e));
      } else {
        result += std::pow(std::abs(e), p);
      }
    }
    store(out, {result});
  });
}

void ReferenceKernels::clip_coefficient(Stream& s, ConstTensorView sum, double p, double max_norm, TensorView norm,
                                        TensorView coefficient) {
  s.submit("clip_coefficient", {reads(sum), writes(norm), writes(coefficient)}, [=] {
    const double n = p >= kInfNorm ? scalar(sum) : std::pow(scalar(sum), 1 / p);
    const double c = std::isinf(max_norm) ? 1 : max_norm / (n + 1e-6);
    store(norm, {n});
    store(coefficient, {c < 1 || std::isnan(c) ? c : 1});
  });
}

void ReferenceKernels::unscale(Stream& s, TensorView x, ConstTensorView scale, TensorView found_inf) {
  s.submit("unscale", {writes(x), reads(scale), writes(found_inf)}, [=] {
    Values v = values(x);
    const auto inverse = static_cast<double>(static_cast<float>(1 / scalar(scale)));
    for (double& e : v) {
      if (!std::isfinite(e)) store(found_inf, {1});
      e *= inverse;
    }
    store(x, v);
  });
}

void ReferenceKernels::update_scale(Stream& s, const ScaleUpdateArgs& args) {
  s.submit("update_scale", {writes(args.scale), writes(args.growth_tracker), writes(args.skipped_steps), reads(args.found_inf)},
           [a = args] {
             const bool overflow = scalar(a.found_inf) != 0;
             const double steps = overflow ? 0 : scalar(a.growth_tracker) + 1;
             const bool grows = steps >= static_cast<double>(a.growth_interval);
             const double scale = scalar(a.scale), least = std::min<double>(scale, kLeastLossScale);
             const double next = overflow ? std::max(scale * a.backoff_factor, least) : grows ? scale * a.growth_factor : scale;
             store(a.growth_tracker, {grows ? 0 : steps});
             if (std::isfinite(static_cast<float>(next))) store(a.scale, {next});
             if (overflow) store(a.skipped_steps, {scalar(a.skipped_steps) + 1});
           });
}

void ReferenceKernels::adamw(Stream& s, std::span<const AdamWArgs> list) {
  for (const AdamWArgs& args : list) {
    s.submit("adamw",
             {reads(args.grad), reads(args.grad_scale), reads(args.skip), reads(args.skipped_steps), writes(args.param),
              writes(args.exp_avg), writes(args.exp_avg_sq)},
             [a = args] {
               if (is_skipped(a.skip)) return;
               const Values g = scaled_gradient(a.grad, a.grad_scale);
               Values p = values(a.param), m = values(a.exp_avg), v = values(a.exp_avg_sq);
               const double step = static_cast<double>(a.step) - (a.skipped_steps ? scalar(a.skipped_steps) : 0);
               const double bias1 = 1 - std::pow(a.beta1, step);
               const double bias2 = 1 - std::pow(a.beta2, step);
               for (std::size_t i = 0; i < p.size(); ++i) {
                 m[i] = a.beta1 * m[i] + (1 - a.beta1) * g[i];
                 v[i] = a.beta2 * v[i] + (1 - a.beta2) * g[i] * g[i];
                 p[i] -= a.lr * a.weight_decay * p[i];
                 p[i] -= a.lr * (m[i] / bias1) / (std::sqrt(v[i] / bias2) + a.eps);
               }
               store(a.param, p);
               store(a.exp_avg, m);
               store(a.exp_avg_sq, v);
             });
  }
}

void ReferenceKernels::sgd(Stream& s, std::span<const SgdArgs> list) {
  for (const SgdArgs& args : list) {
    s.submit("sgd", {reads(args.grad), reads(args.grad_scale), reads(args.skip), writes(args.param), writes(args.momentum_buffer)},
             [a = args] {
               if (is_skipped(a.skip)) return;
               const Values g = scaled_gradient(a.grad, a.grad_scale);
               Values p = values(a.param), buffer = values(a.momentum_buffer);
               for (std::size_t i = 0; i < p.size(); ++i) {
                 const double d = g[i] + a.weight_decay * p[i];
                 double update = d;
                 if (a.momentum != 0) {
                   buffer[i] = a.first_step ? d : a.momentum * buffer[i] + (1 - a.dampening) * d;
                   update = a.nesterov ? d + a.momentum * buffer[i] : buffer[i];
                 }
                 p[i] -= a.lr * update;
               }
               store(a.param, p);
               if (a.momentum != 0) store(a.momentum_buffer, buffer);
             });
  }
}

}  // namespace mica::reference

namespace mica {
std::unique_ptr<Kernels> make_reference_kernels(Pool&) { return std::make_unique<reference::ReferenceKernels>(); }
}  // namespace mica
