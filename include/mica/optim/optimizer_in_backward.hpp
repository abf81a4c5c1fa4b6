// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "mica/optim/optimizer.hpp"

namespace mica::optim {

/// Steps each unit as soon as its gradient is reduced, inside backward, and frees the gradient, so that only a few units'
/// sharded gradients exist at a time (docs/parity.md D10). [Note: optimizer in backward]
/// The step runs on the reduction's stream; the end of backward waits for it. Only parameters of which this rank has a piece
/// are stepped. Ignored parameters are stepped at the end of backward, with this rank's own gradient, which then counts as not
/// written. What needs all gradients at once is not possible: clipping, loss scaling, and the step as a transaction
/// (docs/design.md, A step is a transaction). Once a unit has been stepped, abandon_step() leaves some units stepped and others
/// not, so the run must go back to a checkpoint; before that it undoes begin_step(). Accumulation works under no_sync only,
/// where a unit is reduced once per step.
///   OptimizerInBackward in_backward(*optimizer);
///   each step: in_backward.begin_step(lr); forward; backward.     No optimizer.step(), no zero_grad().
class OptimizerInBackward final : private fsdp::StepParty {
 public:
  /// @param optimizer  outlives this.
  /// @throws ConfigError if a unit's strategy is shard_optim, or the reduction is the deterministic one; Error if the root already has an
  ///         optimizer in backward.
  explicit OptimizerInBackward(Optimizer& optimizer);
  /// The optimizer can be stepped manually again.
  ~OptimizerInBackward() override;

  /// Before the backward of each step.
  /// @throws Error inside a pass; ConfigError for a learning rate that is not a number >= 0.
  void begin_step(double lr);

 private:
  /// No unit may be stepped before the next begin_step().
  void forget_step() override { is_stepped_.assign(is_stepped_.size(), true); }
  /// @throws Error when the unit was stepped in this step already.
  void step_unit(fsdp::UnitStorage& storage);
  void step_ignored();
  /// @throws Error when the unit was stepped in this step already.
  void mark_stepped(std::size_t unit, const std::string& name);

  Optimizer& optimizer_;
  StepArgs args_;
  std::vector<bool> is_stepped_;  // by unit of the optimizer
};

}  // namespace mica::optim
