// SPDX-License-Identifier: Apache-2.0
#include "mica/nn/module.hpp"

#include <algorithm>
#include <utility>

namespace mica::nn {

Tensors Module::forward(Context& context, Tensors&& xs, Record* record) {
  Tensors inputs = std::move(xs);
  if (hooks_) hooks_->pre_forward(context, *this, inputs, record);
  Tensors ys;
  if (record) record->note_inputs(inputs);
  if (checkpointed_ && record && (trains() || std::ranges::any_of(inputs, &Tensor::needs_grad))) {
    {
      const ScopedValue inside(context.inside_checkpoint, true);
      ys = do_forward(context, inputs, nullptr);
    }
    for (Tensor& y : ys) y.needs_grad = true;
    record->checkpoint_inputs = std::move(inputs);
    record->checkpoint_random = random_point(context);
  } else {
    ys = do_forward(context, std::move(inputs), record);
  }
  if (hooks_) hooks_->post_forward(context, *this, ys, record);
  return ys;
}

Tensors Module::backward(Context& context, Record&& record, Tensors&& dys) {
  Tensors dxs(record.input_needs_grad.size());
  if (std::ranges::any_of(dys, [](const Tensor& dy) { return static_cast<bool>(dy); })) {
    if (hooks_) hooks_->pre_backward(context, *this, record, dys);
    dxs = record.checkpoint_inputs.empty() ? do_backward(context, record, std::move(dys))
                                           : recompute_and_backward(context, record, std::move(dys));
    if (hooks_) hooks_->post_backward(context, *this, record, dxs);
  }
  if (!record.is_kept()) record.clear();
  return dxs;
}

Tensors Module::recompute_and_backward(Context& context, Record& record, Tensors dys) {
  Record fresh;
  fresh.note_inputs(record.checkpoint_inputs);
  fresh.dx_sum = record.dx_sum;
  {
    const RandomPoint& drawn_from = record.checkpoint_random;
    const ScopedValue recomputing(context.recomputing, true);
    const ScopedValue seed(context.seed, drawn_from.seed);
    const ScopedValue step(context.step, drawn_from.step);
    const ScopedValue sequences(context.sequences, drawn_from.sequences);
    const ScopedValue training(context.training, drawn_from.training);
    context.compute.begin_range(type_name_, Stream::kRecomputation);
    const Tensors ys = do_forward(context, record.checkpoint_inputs, &fresh);
    context.compute.end_range();
  }
  return do_backward(context, fresh, std::move(dys));
}

ConstTensorView Module::data_of(const Parameter& parameter) const {
  require<Error>(parameter.data || parameter.shape.numel() == 0,
                 "the parameter '{}' {} of a '{}' has no storage: it is sharded at this moment, or never got any. Call "
                 "forward and backward on the sharded model itself, not on a module inside it.",
                 parameter.name, parameter.shape.to_string(), type_name_);
  return parameter.data;
}

TensorView Module::data_of(const ModuleBuffer& buffer) const {
  require<Error>(buffer.data || buffer.shape.numel() == 0,
                 "the buffer '{}' {} of a '{}' has no storage: initialize() the sharded model, or give it PlainParameters, "
                 "first",
                 buffer.name, buffer.shape.to_string(), type_name_);
  return buffer.data;
}

void Module::for_each_module(const std::function<void(const std::string&, Module&)>& visit, const std::string& prefix) {
  visit(prefix, *this);
  for (const Child& child : children_) {
    child.module->for_each_module(visit, prefix.empty() ? child.name : prefix + "." + child.name);
  }
}

void Module::for_each_parameter(const std::function<void(const std::string&, Parameter&)>& visit, const std::string& prefix) {
  for_each_module(
      [&](const std::string& name, Module& module) {
        for (const auto& parameter : module.parameters_) {
          visit(name.empty() ? parameter->name : name + "." + parameter->name, *parameter);
        }
      },
      prefix);
}

void Module::for_each_buffer(const std::function<void(const std::string&, ModuleBuffer&)>& visit, const std::string& prefix) {
  for_each_module(
      [&](const std::string& name, Module& module) {
        for (const auto& buffer : module.buffers_) visit(name.empty() ? buffer->name : name + "." + buffer->name, *buffer);
      },
      prefix);
}

bool Module::trains() const {
  const auto wants_gradient = [](const auto& parameter) { return parameter->requires_grad; };
  return std::ranges::any_of(parameters_, wants_gradient) || std::ranges::any_of(shared_, wants_gradient) ||
         std::ranges::any_of(children_, [](const Child& child) { return child.module->trains(); });
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

ModuleBuffer& Module::add_buffer(std::string name, Shape shape, DType dtype, Initializer init) {
  buffers_.push_back(std::make_unique<ModuleBuffer>());
  ModuleBuffer& buffer = *buffers_.back();
  buffer.name = std::move(name);
  buffer.shape = shape;
  buffer.dtype = dtype;
  buffer.init = init;
  return buffer;
}

Module& Module::adopt_child(std::string name, std::unique_ptr<Module> child) {
  children_.push_back({std::move(name), child.get()});
  owned_children_.push_back(std::move(child));
  return *children_.back().module;
}

}  // namespace mica::nn
