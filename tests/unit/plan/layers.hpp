// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "mica/nn/module.hpp"

namespace mica::test {

/// A weight, an output of `activation_numel` f32 that backward needs, and a gradient of the same size: few enough
/// allocations to add them up by hand.
class Layer final : public nn::Module {
 public:
  Layer(std::int64_t weight_numel, std::int64_t activation_numel)
      : Module("layer"),
        activation_numel_(activation_numel),
        weight_(add_parameter("weight", Shape{weight_numel}, nn::Initializer::ones(), true)) {}

 protected:
  nn::Tensors do_forward(nn::Context& context, nn::Tensors, nn::Record* record) override {
    Tensor y = context.make(Shape{activation_numel_}, DType::f32);
    y.needs_grad = true;
    if (record) record->saved = {y};
    return nn::list_of(std::move(y));
  }
  nn::Tensors do_backward(nn::Context& context, nn::Record&, nn::Tensors) override {
    context.kernels.fill(context.compute, weight_.write_grad().view, 1.0);
    return nn::list_of(context.make(Shape{activation_numel_}, DType::f32));
  }

 private:
  std::int64_t activation_numel_;
  nn::Parameter& weight_;
};

/// A weight of its own, then layers "a", "b", ... one behind the other.
class Layers final : public nn::Module {
 public:
  Layers(std::int64_t own_numel, const std::vector<std::int64_t>& weight_numels, std::int64_t activation_numel)
      : Module("layers"), weight_(add_parameter("weight", Shape{own_numel}, nn::Initializer::ones(), true)) {
    char name = 'a';
    for (const std::int64_t numel : weight_numels) {
      layers_.push_back(&add_child<Layer>(std::string(1, name++), numel, activation_numel));
    }
  }

 protected:
  nn::Tensors do_forward(nn::Context& context, nn::Tensors xs, nn::Record* record) override {
    for (Layer* layer : layers_) xs = layer->forward(context, std::move(xs), nn::child_record(record));
    return xs;
  }
  nn::Tensors do_backward(nn::Context& context, nn::Record& record, nn::Tensors dys) override {
    context.kernels.fill(context.compute, weight_.write_grad().view, 1.0);
    for (std::size_t i = layers_.size(); i-- > 0;) {
      dys = layers_[i]->backward(context, std::move(record.child(i)), std::move(dys));
    }
    return dys;
  }

 private:
  nn::Parameter& weight_;
  std::vector<Layer*> layers_;
};

}  // namespace mica::test
