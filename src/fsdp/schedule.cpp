// SPDX-License-Identifier: Apache-2.0
#include "mica/fsdp/schedule.hpp"

#include <algorithm>
#include <utility>

#include "mica/fsdp/unit.hpp"

namespace mica::fsdp {
namespace {

/// Buffers that a limiter holds back: [Note: rate limiter].
std::size_t num_held(const DeviceMesh& device_mesh) { return device_mesh.streams().mode == StreamMode::inlined ? 0 : 1; }

}  // namespace

std::string_view training_state_name(TrainingState state) {
  switch (state) {
    case TrainingState::idle:
      return "idle";
    case TrainingState::forward:
      return "in forward";
    case TrainingState::backward:
      return "in backward";
    case TrainingState::summon:
      return "summoning full parameters";
  }
  return "?";
}

Schedule::Schedule(DeviceMesh& device_mesh, const std::vector<Unit*>& units, const RootOptions& options)
    : device_mesh_(device_mesh),
      units_(units),
      order_check_(device_mesh, units, options.use_orig_params),
      param_limiter_(num_held(device_mesh), options.limit_all_gathers),
      grad_limiter_(num_held(device_mesh), options.limit_all_gathers),
      full_precision_in_eval_(options.full_precision_in_eval) {}

void Schedule::require_own(const Unit& unit) const {
  require(unit.index() < units_.size() && units_[unit.index()] == &unit,
          "unit {} is in the prefetch list of a unit under another root: a list may contain units of the same root only", unit.name());
}

Schedule::UnitStep& Schedule::step_of(const Unit& unit) {
  require_own(unit);
  steps_.resize(units_.size());
  return steps_[unit.index()];
}

// --- the pass ------------------------------------------------------------------------------------------------------

void Schedule::begin_forward(bool is_training) {
  require(state_ == TrainingState::idle, "forward of the root is called while it is {}", training_state_name(state_));
  if (device_mesh_.mesh().epoch() != epoch_) {  // ranks may disagree whether the first step was over
    epoch_ = device_mesh_.mesh().epoch();
    forget_first_step();
  }
  if (is_training) share_grads();
  state_ = TrainingState::forward;
  full_precision_ = full_precision_in_eval_ && !is_training;
  order_.begin_forward();
  order_check_.begin_forward();
  wait_for_masters();
}

void Schedule::share_grads() {
  if (has_shared_grads_) return;
  const bool any = std::ranges::any_of(units_, [](const Unit* each) { return each->storage() && each->storage()->shares_grads(); });
  if (any) {
    for (Stream* stream : device_mesh_.streams().all()) stream->synchronize();
    for (Unit* each : units_) {
      if (each->storage()) each->storage()->share_grads();
    }
  }
  has_shared_grads_ = true;
}

void Schedule::wait_for_masters() {
  const Streams& streams = device_mesh_.streams();
  const Event optimizer_done = streams.compute->record();
  streams.pre_unshard->wait(optimizer_done);
  streams.unshard->wait(optimizer_done);
  masters_may_change_ = false;
}

void Schedule::end_forward(bool leaves_record) {
  if (!leaves_record) param_limiter_.flush();  // no backward will: the root would be there twice in the next step
  order_.end_forward(leaves_record);
  state_ = TrainingState::idle;
}

void Schedule::begin_backward() {
  if (state_ == TrainingState::backward) return;
  require(state_ == TrainingState::idle, "backward of the root is called while it is {}", training_state_name(state_));
  state_ = TrainingState::backward;
  order_.begin_backward();
  // Only if needed: the first gather would otherwise wait for the forward that compute is still running.
  if (masters_may_change_) wait_for_masters();
}

void Schedule::end_backward() {
  for (Unit* each : units_) {
    if (!each->storage()) continue;
    if (reshards_after_backward(*each)) each->storage()->reshard(param_limiter_);
    if (gradient_sync_) reduce(*each);
  }
  order_check_.end_backward(gradient_sync_);
  const Streams& streams = device_mesh_.streams();
  streams.compute->wait(streams.post_backward->record());
  streams.compute->wait(streams.all_reduce->record());
  const bool offloads = std::ranges::any_of(units_, [](const Unit* u) { return u->options().cpu_offload != CpuOffload::none; });
  if (offloads && gradient_sync_) {  // the optimizer's host reads what was copied to the offload tier
    streams.post_backward->record().wait_on_host();
    streams.all_reduce->record().wait_on_host();
  }
  if (gradient_sync_ && after_backward_) after_backward_();
  param_limiter_.flush();
  grad_limiter_.flush();
  order_.end_backward();
  state_ = TrainingState::idle;
}

// --- a unit --------------------------------------------------------------------------------------------------------

// [Note: a unit's step]
// forward    gather -> compute waits -> maybe gather the next unit -> forward -> reshard, unless the strategy keeps
//            parameters for backward; the root unit always keeps them
// backward   gather -> gather the previous unit (prefetch pre) -> storage for gradients -> backward; after the last
//            outstanding call: reshard -> (prefetch post) -> reduce
// A checkpointed region runs its forward again inside backward: that forward gathers what backward is about to need
// and does nothing else. A unit that gradients do not pass through (a frozen prefix) has no backward: it is
// resharded after forward and not gathered again.

std::unique_ptr<OutstandingCall> Schedule::open_call(const Unit& unit) {
  return std::make_unique<OutstandingCall>(step_of(unit).num_outstanding, full_precision_);
}

void Schedule::require_forward(const Unit& unit) const {
  require(state_ == TrainingState::forward, "forward of unit {} is called while its root is {}: call the forward of the root module",
          unit.name(), training_state_name(state_));
}

void Schedule::require_backward(const Unit& unit) const {
  require(state_ == TrainingState::backward,
          "backward of unit {} is called while its root is {}: call the backward of the root module, or open a BackwardPass", unit.name(),
          training_state_name(state_));
}

void Schedule::enter_forward(Unit& unit, bool backward_comes) {
  // No backward, no order: an evaluation must not change what training prefetches.
  if (backward_comes) order_check_.forward(unit);
  gather_and_expose(unit);
  prefetch_forward(unit);
  if (backward_comes) order_.entered_forward(unit);
}

void Schedule::enter_recomputed_forward(Unit& unit) {
  order_check_.backward(unit);
  gather_and_expose(unit);
}

void Schedule::leave_forward(Unit& unit, bool backward_comes) {
  if (backward_comes) order_.left_forward(unit);
  if (!unit.storage()) return;
  const Strategy strategy = unit.options().strategy;
  const bool keeps = backward_comes && (is_root(unit) || !reshards_after_forward(strategy));
  if (backward_comes && !keeps) {
    unit.storage()->reshard_among_neighbours(param_limiter_);
  } else if (!keeps && (full_precision_ || (fsdp::reshards_after_backward(strategy) && unit.reshard_after_backward()))) {
    unit.storage()->reshard(param_limiter_);  // no strategy keeps an evaluation's fp32 for training
  }
}

void Schedule::enter_backward(Unit& unit, const OutstandingCall* call) {
  if (call) full_precision_ = call->full_precision();
  order_check_.backward(unit);
  gather_and_expose(unit);
  step_of(unit).next_in_backward = order_.next_in_backward(unit);
  if (unit.backward_prefetch() == BackwardPrefetch::pre) prefetch_backward(unit);
  if (unit.storage()) unit.storage()->prepare_grads(grad_limiter_, full_precision_);
}

void Schedule::leave_backward(Unit& unit) {
  if (unit.storage() && !is_outstanding(unit)) {
    if (reshards_after_backward(unit)) unit.storage()->reshard(param_limiter_);
    if (unit.backward_prefetch() == BackwardPrefetch::post) prefetch_backward(unit);
    if (gradient_sync_) reduce(unit);
  }
  if (is_root(unit) && !backward_is_held_open_) end_backward();
}

void Schedule::reduce(const Unit& unit) {
  UnitStorage& storage = *unit.storage();
  if (!storage.has_unsharded_grad()) return;
  order_check_.reduction(unit);
  storage.reduce_grads(grad_limiter_);
  if (!after_reduction_) return;
  storage.reshard(param_limiter_);  // what stays unsharded would go stale
  masters_may_change_ = true;
  after_reduction_(storage);
}

bool Schedule::reshards_after_backward(const Unit& unit) const {
  // A strategy that keeps parameters between forward and backward also keeps them between the micro-batches of a no_sync
  // step, in which they do not change.
  const Strategy strategy = unit.options().strategy;
  if (!fsdp::reshards_after_backward(strategy) || !unit.reshard_after_backward()) return false;
  return gradient_sync_ || reshards_after_forward(strategy);
}

void Schedule::gather(const Unit& unit) {
  require_own(unit);
  if (unit.storage()) unit.storage()->unshard(param_limiter_, full_precision_);
}

void Schedule::gather_and_expose(const Unit& unit) {
  gather(unit);
  if (unit.storage()) unit.storage()->expose();
}

void Schedule::prefetch_forward(const Unit& unit) {
  if (!unit.forward_prefetch_list().empty()) {
    for (const Unit* target : unit.forward_prefetch_list()) gather(*target);
  } else if (unit.options().forward_prefetch) {
    if (const Unit* next = order_.next_in_forward(unit)) gather(*next);
  }
}

void Schedule::prefetch_backward(const Unit& unit) {
  if (!unit.backward_prefetch_list().empty()) {
    for (const Unit* target : unit.backward_prefetch_list()) {
      if (is_outstanding(*target)) gather(*target);
    }
  } else if (const Unit* next = step_of(unit).next_in_backward; next && is_outstanding(*next)) {
    gather(*next);
  }
}

// --- between passes ------------------------------------------------------------------------------------------------

void Schedule::unshard(Unit& unit) {
  require(state_ == TrainingState::idle, "unit {} is unsharded by hand while its root is {}: do it between passes", unit.name(),
          training_state_name(state_));
  order_check_.unshard(unit);
  wait_for_masters();
  full_precision_ = false;
  gather(unit);
}

void Schedule::reshard(Unit& unit) {
  require(state_ == TrainingState::idle, "unit {} is resharded by hand while its root is {}: do it between passes", unit.name(),
          training_state_name(state_));
  if (unit.storage()) unit.storage()->reshard(param_limiter_);
}

void Schedule::reshard_all() {
  require(state_ == TrainingState::idle, "reshard is called while the root is {}", training_state_name(state_));
  for (Unit* each : units_) {
    if (each->storage()) each->storage()->reshard(param_limiter_);
  }
  param_limiter_.flush();
  masters_may_change_ = true;
}

// --- steps ---------------------------------------------------------------------------------------------------------

void Schedule::end_step() {
  if (!first_step_end_ && order_check_.has_reduced()) first_step_end_ = device_mesh_.compute().record();
}

void Schedule::abandon_step(bool is_first_step_over) {
  param_limiter_.flush();
  grad_limiter_.flush();
  for (const Unit* each : units_) {
    if (each->storage()) each->storage()->drop_step();
  }
  steps_.clear();  // calls that are still held count down the abandoned step's counters
  order_.end_backward();
  order_check_.forget_step();
  if (!is_first_step_over) forget_first_step();
  backward_is_held_open_ = false;
  state_ = TrainingState::idle;
}

void Schedule::forget_first_step() {
  order_ = {};
  order_check_.forget_first_step();
  first_step_end_.reset();
}

}  // namespace mica::fsdp
