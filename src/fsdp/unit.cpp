#include "mica/fsdp/unit.hpp"

#include "mica/fsdp/root.hpp"

namespace mica::fsdp {

Unit::Unit(nn::Module& module, DeviceMesh& device_mesh, Options options)
    : module_(module), device_mesh_(device_mesh), options_(options), name_(module.type_name()) {}

Unit::~Unit() = default;

Root& Unit::root() {
  if (!root_) owned_root_ = std::make_unique<Root>(*this);
  return *root_;
}

// [Note: a unit's step]
// pre_forward   gather -> compute waits -> maybe gather the next unit -> forward
// post_forward  reshard, unless the strategy keeps parameters for backward; the root unit always keeps them
// pre_backward  gather -> gather the previous unit (prefetch pre) -> storage for gradients -> backward
// post_backward the last outstanding Record is gone: reshard -> (prefetch post) -> reduce
// A checkpointed region runs its forward again inside backward: that forward gathers what backward is about to need
// and leaves everything else alone.

void Unit::pre_forward(nn::Context& context, nn::Module&, nn::Tensors& xs, nn::Record* record) {
  Root& root = this->root();
  if (record) {
    ++*outstanding_;
    record->unit_ticket = std::shared_ptr<void>(nullptr, [count = outstanding_](void*) {
      if (*count > 0) --*count;
    });
  }
  if (context.recomputing) {
    root.gather(*this);
    return;
  }
  if (is_root()) {
    root.begin_forward();
    root.buffers_.cast_for_forward(false);
    for (Tensor& x : xs) {
      if (!x || !is_floating(x.dtype()) || x.dtype() == options_.param_dtype()) continue;
      Tensor cast = context.make(x.shape(), options_.param_dtype());
      context.kernels.copy(context.compute, x, cast);
      cast.needs_grad = x.needs_grad;
      x = cast;
    }
  }
  require(root.state_ == TrainingState::forward,
          "forward of unit {} is called while its root is {}: call the forward of the root module", name_,
          training_state_name(root.state_));
  root.gather(*this);
  if (options_.forward_prefetch) root.prefetch_forward(*this);
  // No backward, no order: an evaluation must not change what training prefetches.
  if (record || context.inside_checkpoint) root.order_.entered_forward(*this);
}

void Unit::post_forward(nn::Context& context, nn::Module&, nn::Tensors&, nn::Record* record) {
  if (context.recomputing) return;
  Root& root = this->root();
  const bool backward_comes = record || context.inside_checkpoint;
  const bool keeps = backward_comes && (is_root() || !reshards_after_forward(options_.strategy));
  if (backward_comes) root.order_.left_forward(*this);
  if (storage_ && !keeps) storage_->reshard(root.param_limiter_);
  if (is_root()) root.end_forward(record != nullptr);
}

void Unit::pre_backward(nn::Context&, nn::Module&, nn::Record&) {
  Root& root = this->root();
  if (is_root()) root.begin_backward();
  require(root.state_ == TrainingState::backward,
          "backward of unit {} is called while its root is {}: call the backward of the root module, or open a BackwardPass",
          name_, training_state_name(root.state_));
  root.gather(*this);
  Unit* next = root.order_.next_in_backward(*this);
  if (root.options().backward_prefetch == BackwardPrefetch::pre) root.prefetch_backward(next);
  backward_next_ = next;
  if (storage_) storage_->prepare_grads(root.grad_limiter_);
}

void Unit::post_backward(nn::Context&, nn::Module&, nn::Record& record) {
  Root& root = this->root();
  if (!record.is_kept()) record.unit_ticket.reset();
  if (*outstanding_ == 0) root.finish_unit(*this);
  if (is_root() && !root.explicit_pass_) root.end_backward();
}

}  // namespace mica::fsdp
