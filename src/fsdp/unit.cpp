#include "mica/fsdp/unit.hpp"

#include <algorithm>
#include <utility>

#include "mica/fsdp/root.hpp"
#include "mica/fsdp/summon.hpp"

namespace mica::fsdp {
namespace {

/// What a unit leaves in a Record: while it is there, a backward of the unit is outstanding.
struct Ticket {
  explicit Ticket(std::shared_ptr<int> count) : count_(std::move(count)) { ++*count_; }
  ~Ticket() {
    if (*count_ > 0) --*count_;
  }
  Ticket(const Ticket&) = delete;
  Ticket& operator=(const Ticket&) = delete;

  std::vector<DType> input_dtypes;   ///< before the unit cast them
  std::vector<DType> output_dtypes;  ///< before the unit cast them
  bool full_precision = false;       ///< of the forward

 private:
  std::shared_ptr<int> count_;
};

Ticket* ticket_of(nn::Record& record) { return static_cast<Ticket*>(record.unit_ticket.get()); }

bool is_castable(const Tensor& x) { return x && is_floating(x.dtype()); }

void cast(nn::Context& context, Tensor& x, DType dtype) {
  if (!is_castable(x) || x.dtype() == dtype) return;
  Tensor other = context.make(x.shape(), dtype);
  context.kernels.copy(context.compute, x, other);
  other.needs_grad = x.needs_grad;
  x = std::move(other);
}

std::vector<DType> dtypes_of(const nn::Tensors& xs) {
  std::vector<DType> dtypes;
  for (const Tensor& x : xs) dtypes.push_back(x.dtype());
  return dtypes;
}

}  // namespace

void UnshardHandle::wait() {
  if (unit_.storage_ && unit_.storage_->is_unsharded()) unit_.storage_->expose();
}

Unit::Unit(nn::Module& module, DeviceMesh& device_mesh, Options options)
    : module_(module),
      device_mesh_(device_mesh),
      options_(std::move(options)),
      asked_strategy_(options_.strategy),
      name_(module.type_name()) {
  if (device_mesh.geometry().shard_size == 1) options_.strategy = Strategy::no_shard;
}

Unit::~Unit() {
  if (!storage_) return;
  for (const UnitParameter& p : storage_->parameters()) p.parameter->holder = nullptr;
}

Root& Unit::root() {
  if (!root_) owned_root_ = std::make_unique<Root>(*this);
  return *root_;
}

UnshardHandle Unit::unshard() {
  root().unshard_ahead(*this);
  return UnshardHandle(*this);
}

void Unit::reshard() { root().reshard_unit(*this); }

void Unit::apply(const std::function<void(const std::string&, nn::Parameter&)>& fn) {
  (void)root();
  SummonFullParams full(module_, {.recurse = false});
  if (storage_) {
    for (const UnitParameter& p : storage_->parameters()) fn(p.full_name, *p.parameter);
  }
  full.close();
}

BackwardPrefetch Unit::backward_prefetch() const {
  const BackwardPrefetch asked = options_.backward_prefetch;
  return asked == BackwardPrefetch::none && !backward_prefetch_.empty() ? BackwardPrefetch::pre : asked;
}

DType Unit::compute_dtype() const { return root_->full_precision_ ? DType::f32 : options_.param_dtype(); }

bool Unit::casts_inputs() const { return is_root() || (options_.mixed_precision.cast_forward_inputs && storage_); }

bool Unit::trains() const {
  bool trains = false;
  module_.for_each_module([&](const std::string&, nn::Module& module) {
    for (const auto& parameter : module.own_parameters()) trains = trains || parameter->requires_grad;
    for (const nn::Parameter* parameter : module.shared_parameters()) trains = trains || parameter->requires_grad;
  });
  return trains;
}

// [Note: a unit's step]
// pre_forward   gather -> compute waits -> maybe gather the next unit -> forward
// post_forward  reshard, unless the strategy keeps parameters for backward; the root unit always keeps them
// pre_backward  gather -> gather the previous unit (prefetch pre) -> storage for gradients -> backward
// post_backward the last outstanding Record is gone: reshard -> (prefetch post) -> reduce
// A checkpointed region runs its forward again inside backward: that forward gathers what backward is about to need
// and leaves everything else alone. A unit that gradients do not pass through (a frozen prefix) has no backward: it is
// resharded after forward and not gathered again.

void Unit::pre_forward(nn::Context& context, nn::Module&, nn::Tensors& xs, nn::Record* record) {
  Root& root = this->root();
  if (is_root() && !context.recomputing) {
    root.begin_forward(context.training);
    root.buffers_.cast_for_forward(root.full_precision_);
  }
  if (record) {
    auto ticket = std::make_shared<Ticket>(outstanding_);
    ticket->input_dtypes = dtypes_of(xs);
    ticket->full_precision = root.full_precision_;
    record->unit_ticket = std::move(ticket);
  }
  if (casts_inputs()) {
    for (Tensor& x : xs) cast(context, x, compute_dtype());
  }
  if (context.recomputing) {
    root.order_check_.backward(*this);
    root.gather(*this);
    return;
  }
  require(root.state_ == TrainingState::forward,
          "forward of unit {} is called while its root is {}: call the forward of the root module", name_,
          training_state_name(root.state_));
  device_mesh_.compute().begin_range(name_, "forward");
  // No backward, no order: an evaluation must not change what training prefetches.
  const bool is_training = record || context.inside_checkpoint;
  if (is_training) root.order_check_.forward(*this);
  root.gather(*this);
  root.prefetch_forward(*this);
  if (is_training) root.order_.entered_forward(*this);
}

void Unit::post_forward(nn::Context& context, nn::Module&, nn::Tensors& ys, nn::Record* record) {
  if (record) ticket_of(*record)->output_dtypes = dtypes_of(ys);
  if (const auto dtype = options_.mixed_precision.output_dtype) {
    for (Tensor& y : ys) cast(context, y, *dtype);
  }
  if (context.recomputing) return;
  device_mesh_.compute().end_range();
  Root& root = this->root();
  bool backward_comes = record || context.inside_checkpoint;
  const bool is_passed = context.inside_checkpoint || std::ranges::any_of(ys, [](const Tensor& y) { return y.needs_grad; });
  if (record && !is_passed && !is_root() && !trains()) {
    record->unit_ticket.reset();
    backward_comes = false;
  }
  if (backward_comes) root.order_.left_forward(*this);
  if (storage_) {
    const Strategy strategy = options_.strategy;
    const bool keeps = backward_comes && (is_root() || !reshards_after_forward(strategy));
    if (backward_comes && !keeps) {
      storage_->reshard_among_neighbours(root.param_limiter_);
    } else if (!keeps && reshards_after_backward(strategy) && reshards_after_backward_) {
      storage_->reshard(root.param_limiter_);
    }
  }
  if (is_root()) root.end_forward(record != nullptr);
}

void Unit::pre_backward(nn::Context& context, nn::Module&, nn::Record& record, nn::Tensors& dys) {
  Root& root = this->root();
  require(record.unit_ticket || !trains(),
          "backward of unit {} is called with a Record that no forward of it has filled: run its forward with this Record first",
          name_);
  if (is_root()) root.begin_backward();
  require(root.state_ == TrainingState::backward,
          "backward of unit {} is called while its root is {}: call the backward of the root module, or open a BackwardPass",
          name_, training_state_name(root.state_));
  if (record.unit_ticket) root.full_precision_ = ticket_of(record)->full_precision;
  if (options_.mixed_precision.output_dtype && record.unit_ticket) {
    const std::vector<DType>& dtypes = ticket_of(record)->output_dtypes;
    for (std::size_t i = 0; i < dys.size() && i < dtypes.size(); ++i) cast(context, dys[i], dtypes[i]);
  }
  root.order_check_.backward(*this);
  root.gather(*this);
  backward_next_ = root.order_.next_in_backward(*this);
  if (backward_prefetch() == BackwardPrefetch::pre) root.prefetch_backward(*this);
  if (storage_) storage_->prepare_grads(root.grad_limiter_, root.full_precision_);
  device_mesh_.compute().begin_range(name_, "backward");
}

void Unit::post_backward(nn::Context& context, nn::Module&, nn::Record& record, nn::Tensors& dxs) {
  Root& root = this->root();
  device_mesh_.compute().end_range();
  if (record.unit_ticket && casts_inputs()) {
    const std::vector<DType>& dtypes = ticket_of(record)->input_dtypes;
    for (std::size_t i = 0; i < dxs.size() && i < dtypes.size(); ++i) cast(context, dxs[i], dtypes[i]);
  }
  if (!record.is_kept()) record.unit_ticket.reset();
  if (*outstanding_ == 0) root.finish_unit(*this);
  if (is_root() && !root.explicit_pass_) root.end_backward();
}

}  // namespace mica::fsdp
