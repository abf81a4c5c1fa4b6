// SPDX-License-Identifier: Apache-2.0
#include "mica/optim/optimizer_in_backward.hpp"

#include <algorithm>

#include "mica/core/error.hpp"
#include "mica/fsdp/gradient_reduction.hpp"
#include "mica/tensor/openmp.hpp"

#include "gradients.hpp"

namespace mica::optim {

OptimizerInBackward::OptimizerInBackward(Optimizer& optimizer)
    : StepParty(optimizer.root().transaction()), optimizer_(optimizer), is_stepped_(optimizer.units_.size(), true) {
  fsdp::Root& root = optimizer.root();
  for (const fsdp::Unit* unit : root.units()) {
    require<ConfigError>(fsdp::reshards_after_backward(unit->asked_strategy()),
                         "unit {} keeps its parameters unsharded after backward (fsdp.strategy = {}), so an optimizer in backward "
                         "would leave it with old ones: use full_shard or shard_grad_op, or step after backward",
                         unit->name(), fsdp::strategy_name(unit->asked_strategy()));
  }
  require<ConfigError>(!root.options().deterministic,
                       "the deterministic reduction leaves sums over micro-batches, divided after the last backward by "
                       "average_grads(): an optimizer in backward would step with the sums; choose one");
  require(!root.has_after_reduction(), "the root of {} has an optimizer in backward already", root.units().front()->module().type_name());
  root.set_after_reduction([this](fsdp::UnitStorage& storage) { step_unit(storage); });
  if (!root.ignored_parameters().empty()) root.set_after_backward([this] { step_ignored(); });
}

OptimizerInBackward::~OptimizerInBackward() {
  optimizer_.root().set_after_reduction(nullptr);
  optimizer_.root().set_after_backward(nullptr);
}

void OptimizerInBackward::begin_step(double lr) {
  require_idle(optimizer_.root(), "OptimizerInBackward::begin_step");
  args_ = {.lr = lr};
  optimizer_.check_args(args_);
  transaction().before_change(optimizer_);
  ++optimizer_.num_steps_;
  is_stepped_.assign(is_stepped_.size(), false);
}

void OptimizerInBackward::step_unit(fsdp::UnitStorage& storage) {
  const auto unit = std::ranges::find(optimizer_.units_, &storage, &Optimizer::UnitState::storage);
  mark_stepped(static_cast<std::size_t>(unit - optimizer_.units_.begin()), "unit " + storage.name());
  Stream& stream = storage.gradient_stream();
  if (!unit->is_allocated && Optimizer::any_takes_part(*unit)) {
    optimizer_.allocate(*unit);
    stream.wait(optimizer_.device_mesh().compute().record());  // which zeroes the state
  }
  const OpenMpThreads threads(optimizer_.device_mesh().side_stream_threads());
  const Tensor workspace = optimizer_.allocate_workspace(optimizer_.device_mesh().pool(), stream);
  optimizer_.step_unit(*unit, args_, workspace, stream);
  transaction().enqueued(stream.record());
  storage.zero_grad();
}

void OptimizerInBackward::step_ignored() {
  Stream& stream = optimizer_.device_mesh().compute();
  for (std::size_t i = 0; i < optimizer_.units_.size(); ++i) {
    Optimizer::UnitState& unit = optimizer_.units_[i];
    if (unit.storage || !Optimizer::takes_part(unit, 0)) continue;
    mark_stepped(i, "the ignored parameter " + unit.members[0].name);
    Optimizer::check_ignored(unit);
    optimizer_.allocate(unit);
    const Tensor workspace = optimizer_.allocate_workspace(optimizer_.device_mesh().pool(), stream);
    optimizer_.step_unit(unit, args_, workspace, stream);
    transaction().enqueued(stream.record());
    unit.members[0].parameter->grad_written = false;
  }
}

void OptimizerInBackward::mark_stepped(std::size_t unit, const std::string& name) {
  require(!is_stepped_[unit],
          "{} is reduced, but it was stepped in this step already: call begin_step() before each step, and accumulate "
          "micro-batches under no_sync (train.gradient_sync=no_sync)",
          name);
  is_stepped_[unit] = true;
}

}  // namespace mica::optim
