#include "mica/nn/module.hpp"

#include <algorithm>
#include <utility>

namespace mica::nn {

Tensors Module::forward(Context& context, const Tensors& xs, Record* record) {
  Tensors inputs = xs;
  if (hooks_) hooks_->pre_forward(context, *this, inputs, record);
  Tensors ys;
  if (checkpointed_ && record) {
    ys = do_forward(context, inputs, nullptr);
    const bool needs_grad = std::ranges::any_of(inputs, [](const Tensor& x) { return x.needs_grad; });
    bool trains = needs_grad;
    if (!trains) for_each_parameter([&](const std::string&, Parameter& p) { trains = trains || p.requires_grad; });
    for (Tensor& y : ys) y.needs_grad = trains;
    record->checkpoint_inputs = inputs;
  } else {
    ys = do_forward(context, inputs, record);
  }
  if (hooks_) hooks_->post_forward(context, *this, ys, record);
  return ys;
}

Tensors Module::backward(Context& context, Record&& record, const Tensors& dys) {
  if (hooks_) hooks_->pre_backward(context, *this, record);
  Tensors dxs;
  if (checkpointed_ && !record.checkpoint_inputs.empty()) {
    Record fresh;
    const bool outer = std::exchange(context.recomputing, true);
    { const Tensors ys = do_forward(context, record.checkpoint_inputs, &fresh); }
    context.recomputing = outer;
    dxs = do_backward(context, fresh, dys);
  } else {
    dxs = do_backward(context, record, dys);
  }
  if (hooks_) hooks_->post_backward(context, *this, record);
  if (!record.is_kept()) record.clear();
  return dxs;
}

void Module::for_each_module(const std::function<void(const std::string&, Module&)>& visit, const std::string& prefix) {
  visit(prefix, *this);
  for (const Child& child : children_) {
    child.module->for_each_module(visit, prefix.empty() ? child.name : prefix + "." + child.name);
  }
}

void Module::for_each_parameter(const std::function<void(const std::string&, Parameter&)>& visit,
                                const std::string& prefix) {
  for_each_module(
      [&](const std::string& name, Module& module) {
        for (const auto& parameter : module.parameters_) {
          visit(name.empty() ? parameter->name : name + "." + parameter->name, *parameter);
        }
      },
      prefix);
}

std::int64_t Module::num_parameters() {
  std::int64_t numel = 0;
  for_each_parameter([&](const std::string&, Parameter& parameter) { numel += parameter.shape.numel(); });
  return numel;
}

Parameter& Module::add_parameter(std::string name, Shape shape, Initializer init, bool weight_decay) {
  parameters_.push_back(std::make_unique<Parameter>());
  Parameter& parameter = *parameters_.back();
  parameter.name = std::move(name);
  parameter.shape = shape;
  parameter.init = init;
  parameter.weight_decay = weight_decay;
  return parameter;
}

Module& Module::adopt_child(std::string name, std::unique_ptr<Module> child) {
  children_.push_back({std::move(name), child.get()});
  owned_children_.push_back(std::move(child));
  return *children_.back().module;
}

}  // namespace mica::nn
