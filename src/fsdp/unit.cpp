// SPDX-License-Identifier: Apache-2.0
#include "mica/fsdp/unit.hpp"

#include <algorithm>
#include <utility>

#include "mica/fsdp/root.hpp"
#include "mica/fsdp/summon.hpp"

namespace mica::fsdp {
namespace {

/// What a unit leaves in a Record.
struct Ticket {
  std::unique_ptr<OutstandingCall> call;
  std::vector<DType> input_dtypes;   ///< before the unit cast them
  std::vector<DType> output_dtypes;  ///< before the unit cast them
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
  UnitStorage* storage = unit_.storage();
  if (storage && storage->is_unsharded()) storage->expose();
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

void Unit::join(Root& root, std::size_t index, std::string name, std::unique_ptr<UnitStorage> storage) {
  root_ = &root;
  index_ = index;
  name_ = std::move(name);
  storage_ = std::move(storage);
  if (!storage_) return;
  for (const UnitParameter& p : storage_->parameters()) p.parameter->holder = this;
}

UnshardHandle Unit::unshard() {
  root().schedule().unshard(*this);
  return UnshardHandle(*this);
}

void Unit::reshard() { root().schedule().reshard(*this); }

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

DType Unit::compute_dtype() const { return root_->schedule().full_precision() ? DType::f32 : options_.param_dtype(); }

bool Unit::casts_inputs() const { return is_root() || (options_.mixed_precision.cast_forward_inputs && storage_); }

void Unit::observe(PassPoint point, const nn::Tensors& tensors) {
  if (const PassObserver& observer = root().pass_observer()) observer(*this, point, tensors);
}

void Unit::pre_forward(nn::Context& context, nn::Module&, nn::Tensors& xs, nn::Record* record) {
  Root& root = this->root();
  Schedule& schedule = root.schedule();
  if (!context.recomputing) observe(PassPoint::inputs, xs);
  if (is_root() && !context.recomputing) root.begin_forward(context.training);
  if (record) {
    record->unit_ticket =
        std::make_shared<Ticket>(Ticket{.call = schedule.open_call(*this), .input_dtypes = dtypes_of(xs), .output_dtypes = {}});
  }
  if (casts_inputs()) {
    for (Tensor& x : xs) cast(context, x, compute_dtype());
  }
  if (context.recomputing) {
    schedule.enter_recomputed_forward(*this);
    return;
  }
  schedule.require_forward(*this);
  device_mesh_.compute().begin_range(name_, "forward");
  schedule.enter_forward(*this, record || context.inside_checkpoint);
}

void Unit::post_forward(nn::Context& context, nn::Module&, nn::Tensors& ys, nn::Record* record) {
  if (record) ticket_of(*record)->output_dtypes = dtypes_of(ys);
  if (const auto dtype = options_.mixed_precision.output_dtype) {
    for (Tensor& y : ys) {
      const bool has_no_value_yet = record && context.loss_in_backward && y && y.dtype() != *dtype && y.shape() == Shape{1};
      require<ConfigError>(!has_no_value_yet,
                           "unit {}: output_dtype {} would cast a loss that has its value only after backward (Context::loss_in_backward): "
                           "leave one of the two out",
                           name_, dtype_name(*dtype));
      cast(context, y, *dtype);
    }
  }
  if (context.recomputing) return;
  observe(PassPoint::outputs, ys);
  device_mesh_.compute().end_range();
  bool backward_comes = record || context.inside_checkpoint;
  const bool is_passed = context.inside_checkpoint || std::ranges::any_of(ys, [](const Tensor& y) { return y.needs_grad; });
  if (record && !is_passed && !is_root() && !module_.trains()) {
    record->unit_ticket.reset();
    backward_comes = false;
  }
  Schedule& schedule = root().schedule();
  schedule.leave_forward(*this, backward_comes);
  if (is_root()) schedule.end_forward(record != nullptr);
}

void Unit::pre_backward(nn::Context& context, nn::Module&, nn::Record& record, nn::Tensors& dys) {
  observe(PassPoint::output_gradients, dys);
  const Ticket* ticket = ticket_of(record);
  require(ticket || !module_.trains(),
          "backward of unit {} is called with a Record that no forward of it has filled: run its forward with this Record first", name_);
  if (is_root()) root().begin_backward();
  root().schedule().require_backward(*this);
  if (options_.mixed_precision.output_dtype && ticket) {
    const std::vector<DType>& dtypes = ticket->output_dtypes;
    for (std::size_t i = 0; i < dys.size() && i < dtypes.size(); ++i) cast(context, dys[i], dtypes[i]);
  }
  root().schedule().enter_backward(*this, ticket ? ticket->call.get() : nullptr);
  device_mesh_.compute().begin_range(name_, "backward");
}

void Unit::post_backward(nn::Context& context, nn::Module&, nn::Record& record, nn::Tensors& dxs) {
  observe(PassPoint::input_gradients, dxs);
  device_mesh_.compute().end_range();
  if (record.unit_ticket && casts_inputs()) {
    const std::vector<DType>& dtypes = ticket_of(record)->input_dtypes;
    for (std::size_t i = 0; i < dxs.size() && i < dtypes.size(); ++i) cast(context, dxs[i], dtypes[i]);
  }
  if (!record.is_kept()) record.unit_ticket.reset();
  root().schedule().leave_backward(*this);
}

}  // namespace mica::fsdp
