#include "mica/fsdp/root.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "mica/fsdp/gradient_reduction.hpp"

namespace mica::fsdp {

std::string_view training_state_name(TrainingState state) {
  switch (state) {
    case TrainingState::idle: return "idle";
    case TrainingState::forward: return "in forward";
    case TrainingState::backward: return "in backward";
    case TrainingState::summon: return "summoning full parameters";
  }
  return "?";
}

std::vector<ShardedParameter> Root::parameters() const {
  std::vector<ShardedParameter> found;
  for (const Unit* each : units_) {
    if (!each->storage_) continue;
    for (Piece& piece : each->storage_->layout().pieces(each->storage_->shard_rank())) {
      const auto owner = std::ranges::find(each->storage_->parameters(), piece.parameter, &UnitParameter::full_name);
      const auto index = static_cast<std::size_t>(owner - each->storage_->parameters().begin());
      found.push_back({each->storage_.get(), owner->parameter, std::move(piece), index});
    }
  }
  return found;
}

void Root::zero_grad() {
  require(state_ == TrainingState::idle, "zero_grad is called while the root is {}", training_state_name(state_));
  for (Unit* each : units_) {
    if (each->storage_) each->storage_->zero_grad();
  }
  if (!first_step_end_ && order_check_.has_reduced()) first_step_end_ = device_mesh().compute().record();
}

void Root::reshard() {
  require(state_ == TrainingState::idle, "reshard is called while the root is {}", training_state_name(state_));
  for (Unit* each : units_) {
    if (each->storage_) each->storage_->reshard(param_limiter_);
  }
  param_limiter_.flush();
  masters_may_change_ = true;
}

void Root::set_gradient_sync(bool on) {
  require(state_ == TrainingState::idle, "gradient synchronisation is switched while the root is {}: do it between passes",
          training_state_name(state_));
  require(on || !options_.deterministic,
          "no_sync does not go with the deterministic reduction: unsharded gradients would add up several micro-batches "
          "before they are exchanged, in an order that depends on the number of ranks; let every micro-batch reduce");
  gradient_sync_ = on;
}

// --- the pass ------------------------------------------------------------------------------------------------------

void Root::begin_forward(bool is_training) {
  require(state_ == TrainingState::idle, "forward of the root is called while it is {}", training_state_name(state_));
  check_ignored_have_data();
  state_ = TrainingState::forward;
  full_precision_ = options_.full_precision_in_eval && !is_training;
  order_.begin_forward();
  order_check_.begin_forward();
  wait_for_masters();
}

void Root::wait_for_masters() {
  const Streams& streams = device_mesh().streams();
  const Event optimizer_done = streams.compute->record();
  streams.pre_unshard->wait(optimizer_done);
  streams.unshard->wait(optimizer_done);
  masters_may_change_ = false;
}

void Root::end_forward(bool is_training) {
  order_.end_forward(is_training);
  state_ = TrainingState::idle;
}

void Root::begin_backward() {
  if (state_ == TrainingState::backward) return;
  require(state_ == TrainingState::idle, "backward of the root is called while it is {}", training_state_name(state_));
  check_ignored_grads();
  state_ = TrainingState::backward;
  order_.begin_backward();
  // Not always: the first gather need not wait for the forward that compute is busy with.
  if (masters_may_change_) wait_for_masters();
}

void Root::end_backward() {
  for (Unit* each : units_) {
    if (!each->storage_) continue;
    if (reshards_after_backward(*each)) each->storage_->reshard(param_limiter_);
    if (gradient_sync_) reduce(*each);
  }
  order_check_.end_backward(gradient_sync_);
  const Streams& streams = device_mesh().streams();
  streams.compute->wait(streams.post_backward->record());
  streams.compute->wait(streams.all_reduce->record());
  const bool offloads = std::ranges::any_of(units_, [](const Unit* u) { return u->options_.cpu_offload != CpuOffload::none; });
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

void Root::reduce(Unit& unit) {
  if (!unit.storage_->has_unsharded_grad()) return;
  order_check_.reduction(unit);
  unit.storage_->reduce_grads(grad_limiter_);
  if (!after_reduction_) return;
  unit.storage_->reshard(param_limiter_);  // what stays unsharded would go stale
  masters_may_change_ = true;
  after_reduction_(*unit.storage_);
}

void Root::finish_unit(Unit& unit) {
  if (!unit.storage_) return;
  if (reshards_after_backward(unit)) unit.storage_->reshard(param_limiter_);
  if (unit.backward_prefetch() == BackwardPrefetch::post) prefetch_backward(unit);
  if (gradient_sync_) reduce(unit);
}

bool Root::reshards_after_backward(const Unit& unit) const {
  // What keeps parameters between forward and backward also keeps them between the micro-batches of a no_sync step:
  // they do not change.
  if (!fsdp::reshards_after_backward(unit.options_.strategy) || !unit.reshards_after_backward_) return false;
  return gradient_sync_ || reshards_after_forward(unit.options_.strategy);
}

void Root::unshard(Unit& unit) {
  if (unit.storage_) unit.storage_->unshard(param_limiter_, full_precision_);
}

void Root::gather(Unit& unit) {
  unshard(unit);
  if (unit.storage_) unit.storage_->expose();
}

void Root::unshard_ahead(Unit& unit) {
  require(state_ == TrainingState::idle, "unit {} is unsharded by hand while its root is {}: do it between passes", unit.name_,
          training_state_name(state_));
  order_check_.unshard(unit);
  wait_for_masters();
  full_precision_ = false;
  unshard(unit);
}

void Root::reshard_unit(Unit& unit) {
  require(state_ == TrainingState::idle, "unit {} is resharded by hand while its root is {}: do it between passes", unit.name_,
          training_state_name(state_));
  if (unit.storage_) unit.storage_->reshard(param_limiter_);
}

void Root::prefetch_forward(Unit& unit) {
  if (!unit.forward_prefetch_.empty()) {
    for (Unit* target : unit.forward_prefetch_) unshard(*target);
  } else if (unit.options_.forward_prefetch) {
    if (Unit* next = order_.next_in_forward(unit)) unshard(*next);
  }
}

void Root::prefetch_backward(Unit& unit) {
  const auto is_needed = [](const Unit& target) { return *target.outstanding_ > 0; };
  if (!unit.backward_prefetch_.empty()) {
    for (Unit* target : unit.backward_prefetch_) {
      if (is_needed(*target)) unshard(*target);
    }
  } else if (unit.backward_next_ && is_needed(*unit.backward_next_)) {
    unshard(*unit.backward_next_);
  }
}

std::shared_ptr<const void> Root::on_abandon(std::function<void()> undo) {
  auto held = std::make_shared<const std::function<void()>>(std::move(undo));
  std::erase_if(undos_, [](const auto& each) { return each.expired(); });
  undos_.push_back(held);
  return held;
}

void Root::abandon_step() noexcept {
  for (const auto& each : undos_) {
    if (const auto undo = each.lock()) (*undo)();
  }
  const bool is_first_step = !first_step_end_ || first_step_end_->has_failed();
  if (is_first_step) first_step_end_.reset();
  drain_and_clear_errors(device_mesh().streams().all());
  param_limiter_.flush();
  grad_limiter_.flush();
  for (Unit* each : units_) {
    if (each->storage_) each->storage_->drop_step();
    // Tickets that are still held count down the abandoned step's counter, not the next one's.
    each->outstanding_ = std::make_shared<int>(0);
  }
  for (const UnitParameter& p : ignored_parameters_) p.parameter->grad_written = false;
  order_.abandon(is_first_step);
  order_check_.abandon(is_first_step);
  explicit_pass_ = false;
  state_ = TrainingState::idle;
}

// --- explicit passes -------------------------------------------------------------------------------------------------

BackwardPass::BackwardPass(Root& root) : root_(root) {
  root_.begin_backward();
  root_.explicit_pass_ = true;
}

BackwardPass::~BackwardPass() {
  if (!open_) return;
  root_.explicit_pass_ = false;  // unwinding: the caller abandons the step
}

void BackwardPass::finish() {
  open_ = false;
  root_.explicit_pass_ = false;
  root_.end_backward();
}

}  // namespace mica::fsdp
