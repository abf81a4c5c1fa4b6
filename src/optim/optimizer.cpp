#include "mica/optim/optimizer.hpp"

#include <cmath>

#include "mica/core/error.hpp"

namespace mica::optim {

Optimizer::Optimizer(fsdp::Root& root, double weight_decay) : root_(root), weight_decay_(weight_decay) {
  for (const fsdp::Unit* unit : root.units()) {
    if (unit->storage()) units_.push_back({.storage = unit->storage(), .pieces = {}, .buffers = {}});
  }
  // Pieces come unit by unit, in the order of units(); a unit may have none on this rank.
  auto unit = units_.begin();
  for (const fsdp::ShardedParameter& each : root.parameters()) {
    while (unit->storage != each.storage) ++unit;
    unit->pieces.push_back({each.parameter, each.piece.offset, each.piece.numel()});
  }
}

void Optimizer::step(const StepArgs& args) {
  require(root_.state() == fsdp::TrainingState::idle,
          "the optimizer is stepped while the root is {}: step it between passes",
          fsdp::training_state_name(root_.state()));
  require<ConfigError>(std::isfinite(args.lr) && args.lr >= 0, "the learning rate is {}, expected a number >= 0",
                       args.lr);
  check(args);
  // Whatever can fail comes before the first change.
  for (UnitState& unit : units_) {
    if (unit.storage->sharded_grad()) allocate(unit);
  }
  const std::int64_t numel = workspace_numel();
  const Buffer workspace =
      device_mesh().pool().allocate(numel * dtype_bytes(DType::f32), MemoryRole::workspace, device_mesh().compute());
  root_.reshard();
  ++num_steps_;
  for (UnitState& unit : units_) {
    if (unit.storage->sharded_grad()) step_unit(unit, args, {workspace.data(), Shape{numel}, DType::f32});
  }
}

void Optimizer::step_unit(UnitState& unit, const StepArgs& args, TensorView workspace) {
  // State that a checkpoint filled (num_steps_ came with it) is in use already.
  const bool is_first = !unit.has_stepped && (!unit.was_allocated_ahead || num_steps_ == 1);
  unit.has_stepped = true;
  for (std::size_t begin = 0, end = 0; begin < unit.pieces.size(); begin = end) {
    const OwnPiece& first = unit.pieces[begin];
    std::int64_t numel = first.numel;
    for (end = begin + 1; end < unit.pieces.size(); ++end) {
      const OwnPiece& next = unit.pieces[end];
      if (next.offset != first.offset + numel || next.parameter->requires_grad != first.parameter->requires_grad ||
          decay_of(next) != decay_of(first)) {
        break;
      }
      numel += next.numel;
    }
    if (!first.parameter->requires_grad) continue;
    Run run{.param = unit.storage->master().slice(first.offset, numel),
            .grad = unit.storage->sharded_grad().slice(first.offset, numel),
            .state = {},
            .workspace = workspace,
            .weight_decay = decay_of(first),
            .is_first = is_first};
    for (std::size_t kind = 0; kind < unit.buffers.size(); ++kind) {
      run.state.push_back(view_of(unit, kind).slice(first.offset, numel));
    }
    step_run(run, args);
  }
}

void Optimizer::allocate_state() {
  for (UnitState& unit : units_) {
    if (!unit.storage->is_trainable() || unit.is_allocated) continue;
    allocate(unit);
    unit.was_allocated_ahead = true;
  }
}

void Optimizer::allocate(UnitState& unit) {
  if (unit.is_allocated) return;
  Stream& compute = device_mesh().compute();
  std::vector<Buffer> buffers;
  for (std::size_t kind = 0; kind < state_kinds().size(); ++kind) {
    const std::int64_t bytes = unit.storage->layout().shard_numel() * dtype_bytes(DType::f32);
    buffers.push_back(device_mesh().pool().allocate(bytes, MemoryRole::optimizer, compute));
  }
  unit.buffers = std::move(buffers);
  unit.is_allocated = true;
  for (std::size_t kind = 0; kind < unit.buffers.size(); ++kind) {
    device_mesh().kernels().fill(compute, view_of(unit, kind), 0.0);
  }
}

std::vector<StateShard> Optimizer::state() const {
  const std::vector<std::string> kinds = state_kinds();
  std::vector<StateShard> found;
  for (const UnitState& unit : units_) {
    for (std::size_t kind = 0; kind < unit.buffers.size(); ++kind) {
      found.push_back({kinds[kind], unit.storage, view_of(unit, kind)});
    }
  }
  return found;
}

TensorView Optimizer::view_of(const UnitState& unit, std::size_t kind) {
  return {unit.buffers[kind].data(), Shape{unit.storage->layout().shard_numel()}, DType::f32};
}

}  // namespace mica::optim
