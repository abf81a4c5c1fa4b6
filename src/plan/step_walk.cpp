// SPDX-License-Identifier: Apache-2.0
#include "mica/plan/step_walk.hpp"

#include <algorithm>
#include <utility>

#include "mica/core/error.hpp"
#include "mica/tensor/exact_sum.hpp"

namespace mica::plan {

PassProfile PassProfile::chain(std::size_t num_units) {
  PassProfile profile;
  const auto add = [&](HookKind kind, std::size_t unit) { profile.points.push_back({.kind = kind, .unit = unit, .before = {}}); };
  add(HookKind::pre_forward, 0);
  for (std::size_t u = 1; u < num_units; ++u) {
    add(HookKind::pre_forward, u);
    add(HookKind::post_forward, u);
  }
  add(HookKind::post_forward, 0);
  add(HookKind::pre_backward, 0);
  for (std::size_t u = num_units; u-- > 1;) {
    add(HookKind::pre_backward, u);
    add(HookKind::post_backward, u);
  }
  add(HookKind::post_backward, 0);
  return profile;
}

StepSpec step_spec_of(const fsdp::Root& root) {
  StepSpec spec;
  spec.mesh = root.device_mesh().geometry();
  spec.mode = root.device_mesh().streams().mode;
  for (const fsdp::UnitParameter& p : root.ignored_parameters()) {
    if (p.parameter->requires_grad) spec.ignored_trainable_numel += p.parameter->shape.numel();
  }
  return spec;
}

StepWalk::StepWalk(const std::vector<UnitSpec>& units, const StepSpec& spec, const PassProfile& profile, WalkVisitor& visitor)
    : units_(units),
      spec_(spec),
      profile_(profile),
      visitor_(visitor),
      num_held_(spec.mode == StreamMode::inlined ? 0 : 1),
      states_(units.size()) {
  for (const HookPoint& point : profile.points) {
    require(point.unit < units.size(), "a pass profile names unit {}, but there are {}", point.unit, units.size());
  }
}

void StepWalk::initialize() {
  for (const UnitSpec& unit : units_) {
    if (!unit.offloads_masters()) visitor_.allocate(MemoryRole::sharded_param, unit.shard_numel * dtype_bytes(DType::f32));
  }
  visitor_.allocate(MemoryRole::unsharded_param, spec_.ignored_bytes);
}

void StepWalk::micro_batch(bool reduces) {
  bool in_backward = false;
  order_.clear();
  forward_at_ = 0;
  for (const HookPoint& point : profile_.points) {
    visitor_.stretch(point.before);
    switch (point.kind) {
      case HookKind::pre_forward:
        pre_forward(point.unit, point.leaves_record);
        break;
      case HookKind::post_forward:
        post_forward(point);
        break;
      case HookKind::pre_backward:
        if (!in_backward) {
          in_backward = true;
          backward_at_ = order_.size();
          if (on_backward) on_backward();
        }
        pre_backward(point.unit);
        break;
      case HookKind::post_backward:
        post_backward(point.unit, reduces);
        break;
      case HookKind::recompute:
        if (point.leaves_record) ++states_[point.unit].outstanding;
        gather(point.unit);
        break;
    }
  }
  visitor_.stretch(profile_.after);
}

// --- a unit's hooks ------------------------------------------------------------------------------------------------

void StepWalk::pre_forward(std::size_t unit, bool leaves_record) {
  gather(unit);
  const UnitSpec& spec = units_[unit];
  for (const std::size_t listed : spec.forward_prefetch_list) gather(listed);
  if (spec.forward_prefetch_list.empty() && spec.forward_prefetch && knows_order_) {
    while (forward_at_ < first_order_.size() && first_order_[forward_at_] != unit) ++forward_at_;
    forward_at_ = std::min(forward_at_ + 1, first_order_.size());
    if (forward_at_ < first_order_.size()) gather(first_order_[forward_at_]);
  }
  if (!knows_order_) first_order_.push_back(unit);
  if (leaves_record) ++states_[unit].outstanding;
}

void StepWalk::post_forward(const HookPoint& point) {
  const std::size_t unit = point.unit;
  const UnitSpec& spec = units_[unit];
  const bool is_root = unit == 0;
  if (!point.backward_comes) {
    --states_[unit].outstanding;
    reshard(unit, true);
    return;
  }
  if (!is_root && fsdp::reshards_after_forward(spec.strategy)) {
    if (spec.num_neighbours > 0 && states_[unit].is_unsharded) {
      states_[unit].post_forward_bytes = spec.unsharded_numel() / spec.num_neighbours * dtype_bytes(spec.param_dtype);
      visitor_.allocate(MemoryRole::sharded_param, states_[unit].post_forward_bytes);
    }
    give_back(unit);
  }
  order_.push_back(unit);
  if (is_root) knows_order_ = true;
}

void StepWalk::pre_backward(std::size_t unit) {
  gather(unit);
  std::size_t at = backward_at_;
  while (at > 0 && order_[at - 1] != unit) --at;
  if (at > 0) backward_at_ = at - 1;
  states_[unit].backward_next = at > 1 ? order_[at - 2] : kNobody;
  if (units_[unit].backward_prefetch == fsdp::BackwardPrefetch::pre) prefetch_backward(unit);
  prepare_grads(unit);
}

void StepWalk::post_backward(std::size_t unit, bool reduces) {
  UnitState& state = states_[unit];
  if (--state.outstanding == 0) {
    reshard(unit, reduces);
    if (has_parameters(unit) && units_[unit].backward_prefetch == fsdp::BackwardPrefetch::post) prefetch_backward(unit);
    if (reduces) reduce_grads(unit);
  }
  if (unit == 0) end_backward(reduces);
}

void StepWalk::end_backward(bool reduces) {
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    reshard(unit, reduces);
    if (reduces) reduce_grads(unit);
  }
  if (reduces && spec_.steps_in_backward) allocate_ignored_state();
  make_room(held_params_, MemoryRole::unsharded_param, 0);
  make_room(held_grads_, MemoryRole::unsharded_grad, 0);
}

// --- parameters ----------------------------------------------------------------------------------------------------

void StepWalk::gather(std::size_t unit) {
  const UnitSpec& spec = units_[unit];
  UnitState& state = states_[unit];
  if (state.is_unsharded || !has_parameters(unit)) return;
  state.is_unsharded = true;
  if (spec.uses_master()) return;
  make_room(held_params_, MemoryRole::unsharded_param, num_held_);
  state.unsharded_bytes = spec.unsharded_numel() * dtype_bytes(spec.param_dtype);
  visitor_.allocate(MemoryRole::unsharded_param, state.unsharded_bytes);
  if (spec.shard_size == 1) return;
  if (state.post_forward_bytes > 0) {
    collect(Collective::all_gather, Axis::neighbours, unit, spec.unsharded_numel(), spec.param_dtype, spec.num_neighbours);
    visitor_.free(MemoryRole::sharded_param, std::exchange(state.post_forward_bytes, 0));
    return;
  }
  if (spec.hooked_gather) return gather_hooked(unit);
  const bool is_copied = spec.param_dtype != DType::f32 || spec.offloads_masters();
  const std::int64_t low_bytes = is_copied ? spec.shard_numel * dtype_bytes(spec.param_dtype) : 0;
  const std::int64_t gathered_bytes = spec.rearranged_numel > 0 ? spec.gathered_numel() * dtype_bytes(spec.param_dtype) : 0;
  visitor_.allocate(MemoryRole::low_precision_shard, low_bytes);
  visitor_.allocate(MemoryRole::communication, gathered_bytes);
  collect(Collective::all_gather, Axis::shard, unit, spec.gathered_numel(), spec.param_dtype, spec.shard_size);
  visitor_.free(MemoryRole::communication, gathered_bytes);
  visitor_.free(MemoryRole::low_precision_shard, low_bytes);
}

/// A rank's parts are sent as one array of bytes and unpacked parameter by parameter.
void StepWalk::gather_hooked(std::size_t unit) {
  const UnitSpec& spec = units_[unit];
  const fsdp::HookedGatherSizes& sizes = *spec.hooked_gather;
  const std::int64_t received = sizes.sent * spec.shard_size;
  visitor_.allocate(MemoryRole::low_precision_shard, sizes.plain + sizes.sent);
  visitor_.allocate(MemoryRole::communication, sizes.inputs + received);
  collect(Collective::all_gather, Axis::shard, unit, received, DType::u8, spec.shard_size);
  visitor_.allocate(MemoryRole::communication, sizes.unpack);
  visitor_.free(MemoryRole::communication, sizes.unpack + received + sizes.inputs);
  visitor_.free(MemoryRole::low_precision_shard, sizes.plain + sizes.sent);
}

void StepWalk::prefetch_backward(std::size_t unit) {
  std::vector<std::size_t> targets = units_[unit].backward_prefetch_list;
  if (targets.empty() && states_[unit].backward_next != kNobody) targets = {states_[unit].backward_next};
  for (const std::size_t target : targets) {
    if (states_[target].outstanding > 0) gather(target);
  }
}

/// @param reduces  false in a no_sync micro-batch, after which some strategies keep parameters unsharded
void StepWalk::reshard(std::size_t unit, bool reduces) {
  const fsdp::Strategy strategy = units_[unit].strategy;
  if (!fsdp::reshards_after_backward(strategy) || !units_[unit].reshards_after_backward) return;
  if (!reduces && !fsdp::reshards_after_forward(strategy)) return;
  visitor_.free(MemoryRole::sharded_param, std::exchange(states_[unit].post_forward_bytes, 0));
  give_back(unit);
}

void StepWalk::give_back(std::size_t unit) {
  UnitState& state = states_[unit];
  if (!state.is_unsharded) return;
  state.is_unsharded = false;
  release(held_params_, MemoryRole::unsharded_param, state.unsharded_bytes);
  state.unsharded_bytes = 0;
}

// --- gradients -----------------------------------------------------------------------------------------------------

void StepWalk::prepare_grads(std::size_t unit) {
  const UnitSpec& spec = units_[unit];
  UnitState& state = states_[unit];
  if (!spec.is_trainable || !has_parameters(unit) || state.unsharded_grad_bytes > 0) return;
  make_room(held_grads_, MemoryRole::unsharded_grad, num_held_);
  state.unsharded_grad_bytes = spec.unsharded_numel() * dtype_bytes(spec.reduce_dtype);
  const bool is_handed_over = spec.keeps_unsharded_grads && !state.has_sharded_grad;
  visitor_.allocate(is_handed_over ? MemoryRole::sharded_grad : MemoryRole::unsharded_grad, state.unsharded_grad_bytes);
}

void StepWalk::reduce_grads(std::size_t unit) {
  const UnitSpec& spec = units_[unit];
  UnitState& state = states_[unit];
  if (state.unsharded_grad_bytes == 0) return;
  if (spec.keeps_unsharded_grads && !state.has_sharded_grad) {
    state.has_sharded_grad = true;
    state.unsharded_grad_bytes = 0;
    if (spec_.steps_in_backward) step_unit_in_backward(unit);
    return;
  }
  const std::int64_t shard_bytes = spec.sharded_grad_bytes();
  const std::int64_t gathered_bytes = spec.rearranged_numel > 0 ? spec.gathered_numel() * dtype_bytes(spec.reduce_dtype) : 0;
  visitor_.allocate(MemoryRole::communication, gathered_bytes);
  // Offloaded gradients are reduced on the device first.
  if (spec.offloads_grads() || !state.has_sharded_grad) visitor_.allocate(MemoryRole::sharded_grad, shard_bytes);
  state.has_sharded_grad = true;
  // A unit that is not sharded on a sharded mesh is replicated over every rank.
  const bool fits_mesh = spec.shard_size == spec_.mesh.shard_size;
  const Axis axis = fits_mesh ? Axis::replicate : Axis::world;
  const int replicas = fits_mesh ? spec_.mesh.replicas : spec_.mesh.world_size;
  if (spec.is_deterministic) {
    exchange_grads(unit, axis, replicas);
  } else {
    const DType dtype = spec.wire_dtype.value_or(spec.reduce_dtype);
    const std::int64_t low_bytes = spec.wire_dtype ? spec.gathered_numel() * dtype_bytes(dtype) : 0;
    visitor_.allocate(MemoryRole::communication, low_bytes);
    if (spec.shard_size > 1) {
      collect(Collective::reduce_scatter, Axis::shard, unit, spec.gathered_numel(), dtype, spec.shard_size);
    }
    collect(Collective::all_reduce, axis, unit, spec.shard_numel, dtype, replicas);
    visitor_.free(MemoryRole::communication, low_bytes);
  }
  if (spec.offloads_grads()) visitor_.free(MemoryRole::sharded_grad, shard_bytes);
  visitor_.free(MemoryRole::communication, gathered_bytes);
  release(held_grads_, MemoryRole::unsharded_grad, state.unsharded_grad_bytes);
  state.unsharded_grad_bytes = 0;
  if (spec_.steps_in_backward) step_unit_in_backward(unit);
}

void StepWalk::step_unit_in_backward(std::size_t unit) {
  allocate_optimizer_state(unit);
  visitor_.allocate(MemoryRole::workspace, spec_.step_workspace_bytes);
  visitor_.free(MemoryRole::workspace, spec_.step_workspace_bytes);
  states_[unit].has_sharded_grad = false;
  if (!units_[unit].offloads_grads()) visitor_.free(MemoryRole::sharded_grad, units_[unit].sharded_grad_bytes());
}

/// The ranks' unreduced gradients of this rank's shard are held at the same time.
void StepWalk::exchange_grads(std::size_t unit, Axis axis, int replicas) {
  const UnitSpec& spec = units_[unit];
  const std::int64_t bytes = spec.gathered_numel() * dtype_bytes(spec.reduce_dtype);
  const std::int64_t swapped = spec.shard_size > 1 ? bytes : 0;
  const std::int64_t gathered = replicas > 1 ? replicas * bytes : 0;
  visitor_.allocate(MemoryRole::communication, swapped);
  if (swapped > 0) {
    collect(Collective::all_to_all, Axis::shard, unit, spec.gathered_numel(), spec.reduce_dtype, spec.shard_size);
  }
  visitor_.allocate(MemoryRole::communication, gathered);
  collect(Collective::all_gather, axis, unit, replicas * spec.gathered_numel(), spec.reduce_dtype, replicas);
  visitor_.free(MemoryRole::communication, swapped + gathered);
}

// --- after the passes ---------------------------------------------------------------------------------------------

void StepWalk::allocate_optimizer_state(std::size_t unit) {
  if (std::exchange(states_[unit].has_optimizer_state, true) || units_[unit].offloads_masters()) return;
  visitor_.allocate(MemoryRole::optimizer, spec_.state_bytes_per_element * units_[unit].shard_numel);
}

void StepWalk::allocate_ignored_state() {
  if (std::exchange(has_ignored_state_, true)) return;
  visitor_.allocate(MemoryRole::optimizer, spec_.state_bytes_per_element * spec_.ignored_trainable_numel);
}

void StepWalk::optimizer_step() {
  if (spec_.steps_in_backward) return;
  if (spec_.scales_loss) collect(Collective::all_reduce, Axis::world, 0, 1, DType::f32, spec_.mesh.world_size);
  if (spec_.clips_grads) {
    if (units_.front().is_deterministic) {
      const std::int64_t numel = spec_.mesh.shard_size * ExactSum::kLimbs;
      collect(Collective::all_gather, Axis::shard, 0, numel, DType::i64, spec_.mesh.shard_size);
    } else {
      collect(Collective::all_reduce, Axis::shard, 0, 1, DType::f32, spec_.mesh.shard_size);
    }
  }
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    if (states_[unit].has_sharded_grad) allocate_optimizer_state(unit);
  }
  allocate_ignored_state();
  visitor_.allocate(MemoryRole::workspace, spec_.step_workspace_bytes);
  // Parameters that are still unsharded would be stale after the step.
  for (std::size_t unit = 0; unit < units_.size(); ++unit) give_back(unit);
  make_room(held_params_, MemoryRole::unsharded_param, 0);
  visitor_.free(MemoryRole::workspace, spec_.step_workspace_bytes);
}

void StepWalk::zero_grad() {
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    if (!states_[unit].has_sharded_grad) continue;
    states_[unit].has_sharded_grad = false;
    if (units_[unit].offloads_grads()) continue;
    visitor_.free(MemoryRole::sharded_grad, units_[unit].sharded_grad_bytes());
  }
}

// --- helpers -----------------------------------------------------------------------------------------

void StepWalk::collect(Collective kind, Axis axis, std::size_t unit, std::int64_t numel, DType dtype, int num_ranks) {
  if (num_ranks == 1 || numel == 0) return;
  const std::int64_t staging = spec_.staging_bytes ? spec_.staging_bytes(kind, numel, dtype, num_ranks) : 0;
  visitor_.allocate(MemoryRole::communication, staging);
  visitor_.collective({kind, axis, unit, numel * dtype_bytes(dtype), num_ranks});
  visitor_.free(MemoryRole::communication, staging);
}

void StepWalk::release(Limiter& limiter, MemoryRole role, std::int64_t bytes) {
  if (bytes == 0) return;
  limiter.push_back(bytes);
  if (num_held_ == 0) make_room(limiter, role, 0);
}

void StepWalk::make_room(Limiter& limiter, MemoryRole role, std::size_t num_kept) {
  for (; limiter.size() > num_kept; limiter.pop_front()) visitor_.free(role, limiter.front());
}

}  // namespace mica::plan
