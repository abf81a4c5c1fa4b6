// SPDX-License-Identifier: Apache-2.0
#include "mica/optim/grad_scaler.hpp"

#include <cmath>

#include "mica/core/error.hpp"
#include "mica/tensor/fetch.hpp"
#include "mica/tensor/loss_scale.hpp"

#include "gradients.hpp"

namespace mica::optim {
namespace {

/// The largest count that f32 holds exactly.
constexpr std::int64_t kMostSteps = 1 << 24;

void check_options(const GradScalerOptions& options) {
  require<ConfigError>(static_cast<float>(options.init_scale) > 0 && std::isfinite(static_cast<float>(options.init_scale)),
                       "optim.loss_scale is {}, expected a number above 0 that fp32 can hold", options.init_scale);
  require<ConfigError>(options.growth_factor > 1 && std::isfinite(options.growth_factor),
                       "the loss scale's growth_factor is {}, expected more than 1", options.growth_factor);
  require<ConfigError>(options.backoff_factor > 0 && options.backoff_factor < 1,
                       "the loss scale's backoff_factor is {}, expected 0 < backoff_factor < 1", options.backoff_factor);
  require<ConfigError>(options.growth_interval >= 1 && options.growth_interval < kMostSteps,
                       "optim.loss_scale_interval is {}, expected 1 to {}", options.growth_interval, kMostSteps - 1);
}

}  // namespace

GradScaler::GradScaler(fsdp::Root& root, const GradScalerOptions& options) : StepParty(root.transaction()), root_(root), options_(options) {
  check_options(options);
  const fsdp::DeviceMesh& device_mesh = root.device_mesh();
  for (Tensor* each : {&scale_, &growth_tracker_, &skipped_steps_, &found_inf_}) {
    *each = make_scalar(device_mesh);
    device_mesh.kernels().fill(device_mesh.compute(), *each, each == &scale_ ? options.init_scale : 0.0);
  }
}

Tensor GradScaler::scaled(double dloss) const {
  const fsdp::DeviceMesh& device_mesh = root_.device_mesh();
  Tensor result = make_scalar(device_mesh);
  device_mesh.kernels().scale(device_mesh.compute(), scale_, dloss, result, Write::overwrite);
  return result;
}

void GradScaler::unscale() {
  require_idle(root_, "GradScaler::unscale");
  require(!is_unscaled_, "GradScaler::unscale is called twice in a step: call update() after the optimizer's step");
  is_unscaled_ = true;
  const fsdp::DeviceMesh& device_mesh = root_.device_mesh();
  Kernels& kernels = device_mesh.kernels();
  Stream& compute = device_mesh.compute();
  kernels.fill(compute, found_inf_, 0.0);
  for_each_grad(root_, [&](TensorView grad, const fsdp::UnitStorage*) { kernels.unscale(compute, grad, scale_, found_inf_); });
  // Over the replicas too: they have the same gradients, but must agree even if a reduction was rounded differently there.
  device_mesh.metrics_group().all_reduce(compute, "found_inf", found_inf_, ReduceOp::max);
}

void GradScaler::update() {
  require_idle(root_, "GradScaler::update");
  require(is_unscaled_, "GradScaler::update is called in a step without unscale(): nobody looked for overflows");
  is_unscaled_ = false;
  const fsdp::DeviceMesh& device_mesh = root_.device_mesh();
  device_mesh.kernels().update_scale(device_mesh.compute(), {.scale = scale_,
                                                             .growth_tracker = growth_tracker_,
                                                             .skipped_steps = skipped_steps_,
                                                             .found_inf = found_inf_,
                                                             .growth_factor = options_.growth_factor,
                                                             .backoff_factor = options_.backoff_factor,
                                                             .growth_interval = options_.growth_interval});
}

GradScaler::State GradScaler::state() const {
  return {static_cast<double>(value_of(scale_)), static_cast<std::int64_t>(value_of(growth_tracker_))};
}

void GradScaler::set_state(const State& state) {
  require<CheckpointError>(
      state.scale >= 0 && std::isfinite(static_cast<float>(state.scale)) && state.growth_tracker >= 0 && state.growth_tracker < kMostSteps,
      "a loss scale of {} after {} steps is impossible: the checkpoint or state is wrong", state.scale, state.growth_tracker);
  const fsdp::DeviceMesh& device_mesh = root_.device_mesh();
  // 0: of an earlier version, which had no least scale
  device_mesh.kernels().fill(device_mesh.compute(), scale_, state.scale == 0 ? kLeastLossScale : state.scale);
  device_mesh.kernels().fill(device_mesh.compute(), growth_tracker_, static_cast<double>(state.growth_tracker));
  device_mesh.compute().synchronize();
}

void GradScaler::take_skipped_steps_off(Optimizer& optimizer) {
  optimizer.take_off_skipped_steps(static_cast<std::int64_t>(value_of(skipped_steps_)));
}

float GradScaler::value_of(const Tensor& scalar) const {
  const fsdp::DeviceMesh& device_mesh = root_.device_mesh();
  return fetch_scalar(device_mesh.kernels(), device_mesh.compute(), scalar);
}

}  // namespace mica::optim
