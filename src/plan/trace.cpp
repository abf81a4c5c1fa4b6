// SPDX-License-Identifier: Apache-2.0
#include "mica/plan/trace.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include "mica/core/error.hpp"

#include "dry_device.hpp"

namespace mica::plan {

void DryPool::note() {
  const Moment now{stats().current_of(MemoryRole::activation), stats().current_of(MemoryRole::workspace)};
  if (now.total() > stretch_.peak.total()) stretch_.peak = now;
  stretch_.activation_peak = std::max(stretch_.activation_peak, now.activation);
  stretch_.workspace_peak = std::max(stretch_.workspace_peak, now.workspace);
  stretch_.end = now;
}

Stretch DryPool::take_stretch() {
  note();
  const Stretch found = stretch_;
  stretch_ = {.peak = found.end, .activation_peak = found.end.activation, .workspace_peak = found.end.workspace, .end = found.end};
  return found;
}

Pool::Taken DryPool::take(std::int64_t bytes, Stream&) {
  note();
  return {addresses_.take(bytes), {}};
}

void DryPool::give(void*, Stream*, std::vector<Event>) { note(); }

namespace {

/// Records when a unit's hooks run. For the root unit it also casts the inputs, as the unit would.
class Probe final : public nn::ModuleHooks {
 public:
  Probe(std::size_t unit, DType param_dtype, DryPool& pool, PassProfile& profile)
      : unit_(unit), param_dtype_(param_dtype), pool_(pool), profile_(profile) {}

  void pre_forward(nn::Context& context, nn::Module&, nn::Tensors& xs, nn::Record* record) override {
    if (context.recomputing) return note(HookKind::recompute, record != nullptr);
    if (unit_ == 0) cast_inputs(context, xs);
    note(HookKind::pre_forward, record != nullptr);
  }
  void post_forward(nn::Context& context, nn::Module& module, nn::Tensors& ys, nn::Record*) override {
    if (context.recomputing) return;
    note(HookKind::post_forward);
    profile_.points.back().backward_comes =
        unit_ == 0 || context.inside_checkpoint || module.trains() || std::ranges::any_of(ys, &Tensor::needs_grad);
  }
  void pre_backward(nn::Context&, nn::Module&, nn::Record&, nn::Tensors&) override { note(HookKind::pre_backward); }
  void post_backward(nn::Context&, nn::Module&, nn::Record&, nn::Tensors&) override { note(HookKind::post_backward); }

 private:
  void note(HookKind kind, bool leaves_record = true) { profile_.points.push_back({kind, unit_, pool_.take_stretch(), leaves_record}); }
  void cast_inputs(nn::Context& context, nn::Tensors& xs) {
    for (Tensor& x : xs) {
      if (!x || !is_floating(x.dtype()) || x.dtype() == param_dtype_) continue;
      Tensor cast = context.make(x.shape(), param_dtype_);
      cast.needs_grad = x.needs_grad;
      x = std::move(cast);
    }
  }

  std::size_t unit_;
  DType param_dtype_;
  DryPool& pool_;
  PassProfile& profile_;
};

/// Gives a model probes and parameters without memory, and removes them in the destructor.
class DryModel {
 public:
  DryModel(nn::Module& model, const std::vector<UnitSpec>& units, const TraceOptions& options, DryAddresses& addresses, DryPool& pool,
           PassProfile& profile)
      : model_(model) {
    std::map<std::string, nn::Module*> modules;
    model.for_each_module([&](const std::string& name, nn::Module& module) {
      require(!module.hooks(), "trace_pass() needs a model that is not sharded, but its module {} is a unit already",
              name.empty() ? "root" : name);
      modules[name] = &module;
    });
    std::vector<nn::Module*> unit_modules;
    for (const UnitSpec& unit : units) {
      const auto found = modules.find(unit_modules.empty() ? "" : unit.name);
      require(found != modules.end(), "trace_pass(): the model has no module '{}', which is the name of a unit", unit.name);
      unit_modules.push_back(found->second);
    }
    // Nothing may throw from here on, since probes would be left behind.
    for (std::size_t u = 0; u < units.size(); ++u) {
      unit_modules[u]->set_hooks(std::make_shared<Probe>(u, options.param_dtype, pool, profile));
    }
    model.for_each_parameter([&](const std::string&, nn::Parameter& parameter) {
      const std::int64_t numel = parameter.shape.numel();
      parameter.data = {addresses.take(numel * dtype_bytes(options.param_dtype)), parameter.shape, options.param_dtype};
      parameter.grad = {addresses.take(numel * dtype_bytes(options.reduce_dtype)), parameter.shape, options.reduce_dtype};
      parameter.grad_written = false;
    });
  }
  ~DryModel() {
    model_.for_each_module([](const std::string&, nn::Module& module) { module.set_hooks(nullptr); });
    model_.for_each_parameter([](const std::string&, nn::Parameter& parameter) {
      parameter.data = parameter.grad = {};
      parameter.grad_written = false;
    });
  }
  DryModel(const DryModel&) = delete;
  DryModel& operator=(const DryModel&) = delete;

 private:
  nn::Module& model_;
};

}  // namespace

PassProfile trace_pass(nn::Module& model, const std::vector<UnitSpec>& units, const std::vector<InputSpec>& inputs,
                       const TraceOptions& options) {
  PassProfile profile;
  DryAddresses addresses;
  DryStream stream;
  DryPool pool(addresses);
  const std::unique_ptr<Kernels> kernels = options.make_kernels(pool);
  nn::Context context{.compute = stream, .pool = pool, .kernels = *kernels};
  context.loss_in_backward = options.loss_in_backward;
  context.recompute = options.recompute;
  const auto borrowed = [&](Shape shape, DType dtype) {
    return Tensor(TensorView(addresses.take(shape.numel() * dtype_bytes(dtype)), shape, dtype));
  };
  nn::Tensors xs;
  for (const InputSpec& input : inputs) {
    xs.push_back(options.counts_inputs ? context.make(input.shape, input.dtype) : borrowed(input.shape, input.dtype));
  }
  const bool has_rows = !inputs.empty() && inputs[0].shape.num_dims() > 0;
  context.sequences.assign(has_rows ? static_cast<std::size_t>(inputs[0].shape[0]) : 0, 0);

  const DryModel dry(model, units, options, addresses, pool, profile);
  {
    nn::Record record;
    const nn::Tensors ys = model.forward(context, std::move(xs), &record);
    nn::Tensors dys;
    for (const Tensor& y : ys) dys.push_back(borrowed(y.shape(), y.dtype()));
    model.backward(context, std::move(record), std::move(dys));
  }
  profile.after = pool.take_stretch();
  return profile;
}

}  // namespace mica::plan
