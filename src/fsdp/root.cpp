// SPDX-License-Identifier: Apache-2.0
#include "mica/fsdp/root.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "unit_claim.hpp"

namespace mica::fsdp {

Root::Root(Unit& unit)
    : unit_(unit),
      options_(unit.options().root.value_or(RootOptions{})),
      buffers_(unit.device_mesh()),
      schedule_(unit.device_mesh(), units_, options_) {
  UnitClaim claim(unit, options_);
  std::vector<std::unique_ptr<UnitStorage>> storages;
  for (UnitClaim::Member& member : claim.members) {
    storages.push_back(member.parameters.empty()
                           ? nullptr
                           : std::make_unique<UnitStorage>(
                                 member.name, std::move(member.parameters), member.unit->device_mesh(), member.unit->options(), options_,
                                 /*keeps_for_backward=*/member.unit == &unit || !reshards_after_forward(member.unit->options().strategy)));
  }
  for (const UnitClaim::Buffer& each : claim.buffers) buffers_.add(each.full_name, *each.buffer, each.dtype);
  // From here on nothing can fail.
  for (std::size_t i = 0; i < claim.members.size(); ++i) {
    Unit& each = *claim.members[i].unit;
    each.join(*this, i, claim.members[i].name, std::move(storages[i]));
    units_.push_back(&each);
    if (each.storage()) add_pieces(each);
  }
  ignored_parameters_ = std::move(claim.ignored_parameters);
  ignored_buffers_ = std::move(claim.ignored_buffers);
  ignored_modules_ = std::move(claim.ignored_modules);
  warn_about_strategy();
}

void Root::warn_about_strategy() const {
  if (device_mesh().mesh().rank() != 0) return;  // all ranks would log the same
  const Logger& logger = device_mesh().logger();
  for (const Unit* each : units_) {
    if (each->asked_strategy() != each->options().strategy) {
      logger.warn("strategy {} of unit {} acts as no_shard: the shard axis has one rank", strategy_name(each->asked_strategy()),
                  each->name());
      return;
    }
  }
  for (const Unit* each : units_) {
    if (is_hybrid(each->options().strategy) && each->device_mesh().geometry().replicas == 1) {
      logger.warn("strategy {} of unit {} has no replicas: the replicate axis of the mesh has one rank",
                  strategy_name(each->options().strategy), each->name());
      return;
    }
  }
}

void Root::check_ignored_have_data() const {
  for (const UnitParameter& p : ignored_parameters_) {
    require(p.parameter->data || p.parameter->shape.numel() == 0,
            "the ignored parameter {} {} has no data: its user owns its storage and must set "
            "Parameter::data before the first forward",
            p.full_name, p.parameter->shape.to_string());
  }
  for (const ModuleBufferName& b : ignored_buffers_) {
    require(b.buffer->data || b.buffer->shape.numel() == 0,
            "the buffer {} {} of an ignored module has no data: the module's user owns its buffers' storage and must set "
            "ModuleBuffer::data before the first forward",
            b.full_name, b.buffer->shape.to_string());
  }
}

// Units allocate their own gradients; those of ignored parameters come from the user.
void Root::check_ignored_grads() const {
  const Pool& pool = device_mesh().pool();
  for (const UnitParameter& p : ignored_parameters_) {
    const TensorView& grad = p.parameter->grad;
    if (!grad) continue;
    require(grad.shape == p.parameter->shape,
            "gradients of the ignored parameter {} {} would accumulate into one of shape {}: set Parameter::grad to an "
            "array of the parameter's shape",
            p.full_name, p.parameter->shape.to_string(), grad.shape.to_string());
    const DeviceKind of_grad = pool.device_of(grad.data), of_data = pool.device_of(p.parameter->data.data);
    require(of_grad == of_data,
            "gradients of the ignored parameter {}, which is on {}, would accumulate into one on {}: set Parameter::grad "
            "to an array on the parameter's device",
            p.full_name, device_kind_name(of_data), device_kind_name(of_grad));
  }
}

void Root::add_pieces(const Unit& unit) {
  for (Piece& piece : unit.storage()->layout().pieces(unit.storage()->shard_rank())) {
    piece.unit = unit.index();
    pieces_.push_back(piece);
    Stretch* last = stretches_.empty() ? nullptr : &stretches_.back();
    if (last && last->unit == piece.unit && last->offset + last->numel == piece.offset) {
      last->numel += piece.numel();
    } else {
      stretches_.push_back({piece.unit, piece.offset, piece.numel()});
    }
  }
}

std::span<const Piece> Root::pieces_of(const Unit& unit) const { return std::ranges::equal_range(pieces_, unit.index(), {}, &Piece::unit); }

const Piece* Root::piece_of(const Unit& unit, std::size_t i) const {
  const std::span<const Piece> pieces = pieces_of(unit);
  const auto found = std::ranges::find(pieces, i, &Piece::parameter);
  return found == pieces.end() ? nullptr : &*found;
}

ConstTensorView Root::master(const Piece& piece) const { return storage(piece).master().slice(piece.offset, piece.numel()); }

TensorView Root::write_master(const Piece& piece) const { return storage(piece).write_master().slice(piece.offset, piece.numel()); }

TensorView Root::grad(const Piece& piece) const {
  const UnitStorage& storage = this->storage(piece);
  return storage.has_grad(piece.parameter) ? storage.sharded_grad().slice(piece.offset, piece.numel()) : TensorView{};
}

void Root::zero_grad() {
  require(state() == TrainingState::idle, "zero_grad is called while the root is {}", training_state_name(state()));
  for (Unit* each : units_) {
    if (each->storage()) each->storage()->zero_grad();
  }
  schedule_.end_step();
}

void Root::set_gradient_sync(bool on) {
  require(state() == TrainingState::idle, "gradient synchronisation is switched while the root is {}: do it between passes",
          training_state_name(state()));
  require(on || !options_.deterministic,
          "no_sync does not go with the deterministic reduction: unsharded gradients would add up several micro-batches "
          "before they are exchanged, in an order that depends on the number of ranks; let every micro-batch reduce");
  schedule_.set_gradient_sync(on);
}

void Root::begin_forward(bool is_training) {
  check_ignored_have_data();
  schedule_.begin_forward(is_training);
  buffers_.cast_for_forward(schedule_.full_precision());
}

void Root::begin_backward() {
  if (state() == TrainingState::idle) check_ignored_grads();
  schedule_.begin_backward();
}

void Root::abandon_step() noexcept {
  const bool is_first_step_over = schedule_.is_first_step_over();  // before errors are cleared
  transaction_->abandon(device_mesh().streams().all());
  schedule_.abandon_step(is_first_step_over);
  for (const UnitParameter& p : ignored_parameters_) p.parameter->grad_written = false;
}

// --- explicit passes -------------------------------------------------------------------------------------------------

BackwardPass::BackwardPass(Root& root) : root_(root) {
  root_.begin_backward();
  root_.schedule().hold_backward_open(true);
}

BackwardPass::~BackwardPass() {
  if (!open_) return;
  root_.schedule().hold_backward_open(false);  // unwinding: the caller abandons the step
}

void BackwardPass::finish() {
  open_ = false;
  root_.schedule().hold_backward_open(false);
  root_.schedule().end_backward();
}

}  // namespace mica::fsdp
