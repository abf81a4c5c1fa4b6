// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "mica/fsdp/root.hpp"
#include "mica/optim/optimizer.hpp"
#include "mica/tensor/tensor.hpp"

namespace mica::optim {

/// As PyTorch's (Sharded)GradScaler, with its defaults.
struct GradScalerOptions {
  double init_scale = 65536;
  double growth_factor = 2;
  double backoff_factor = 0.5;
  std::int64_t growth_interval = 2000;  ///< steps without an overflow after which the scale grows
};

/// Keeps fp16 gradients in range: the loss's gradient is multiplied by a scale, and a step whose gradients overflow on any rank
/// is skipped on all ranks (docs/parity.md D7). [Note: loss scaling]
/// One step:
///   const Tensor dloss = scaler.scaled(1.0 / num_micro_batches);       pass it to every backward of the step
///   ... forwards and backwards ...
///   scaler.unscale();                                                  gradients without the scale
///   const ClipCoefficient clip = clip_coefficient(root, max_norm);
///   optimizer.step({.lr = lr, .grad_scale = clip.coefficient.view(),
///                   .skip = scaler.found_inf(), .skipped_steps = scaler.skipped_steps()});
///   scaler.update();
/// The host reads nothing in a step: scale, overflow flag and the count of skipped steps are one-element device tensors,
/// and the kernels decide. A skipped step does not count in the optimizer's bias correction.
/// Example: init_scale 8, growth_interval 2; overflows in steps 3 and 4: the scale of steps 1.. is 8 8 16 8 4.
class GradScaler final : private fsdp::StepParty {
 public:
  /// The state, for the host to read between steps.
  struct State {
    double scale = 0;
    std::int64_t growth_tracker = 0;  ///< steps without an overflow since the scale last changed
    friend bool operator==(const State&, const State&) = default;
  };

  /// @param root  outlives it.  @throws ConfigError naming the option.
  explicit GradScaler(fsdp::Root& root, const GradScalerOptions& options = {});

  /// [1] f32, the scale of the current or next step.
  [[nodiscard]] ConstTensorView scale() const { return scale_.view(); }
  /// [1] f32: dloss * scale.
  [[nodiscard]] Tensor scaled(double dloss) const;

  /// Divides the sharded gradients by the scale and checks, over all ranks, whether one is infinite or NaN. Once per step,
  /// before clipping.
  /// @collective over the world: one all-reduce of 4 bytes, also from ranks without gradients.
  /// @throws Error if called twice in a step, or inside a pass.
  void unscale();
  /// [1] f32, not 0 if this step's gradients overflowed: StepArgs::skip.
  [[nodiscard]] ConstTensorView found_inf() const { return found_inf_.view(); }
  /// [1] f32, steps skipped so far: StepArgs::skipped_steps.
  [[nodiscard]] ConstTensorView skipped_steps() const { return skipped_steps_.view(); }
  /// Updates the scale for the next step. After the optimizer's step. @throws Error without an unscale().
  void update();

  /// Waits for the compute stream.
  [[nodiscard]] State state() const;
  /// Restores a saved state (a checkpoint's). Waits for the compute stream.
  /// @throws CheckpointError for an impossible state.
  void set_state(const State& state);
  /// Subtracts skipped steps from optimizer.num_steps(), before a checkpoint. Waits for the compute stream; does not change
  /// results.
  void take_skipped_steps_off(Optimizer& optimizer);

 private:
  void forget_step() override { is_unscaled_ = false; }
  [[nodiscard]] float value_of(const Tensor& scalar) const;

  fsdp::Root& root_;
  GradScalerOptions options_;
  Tensor scale_, growth_tracker_, skipped_steps_, found_inf_;  // each [1] f32
  bool is_unscaled_ = false;                                   // between unscale() and update()
};

}  // namespace mica::optim
