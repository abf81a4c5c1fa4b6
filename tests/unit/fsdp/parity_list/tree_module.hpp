// SPDX-License-Identifier: Apache-2.0
// Modules of any shape of tree, for tests of wrapping.
#pragma once

#include <string>
#include <type_traits>
#include <utility>

#include "mica/nn/module.hpp"

namespace mica::fsdp::testing {

/// One parameter "weight" (none of no elements) and any children, which it runs in turn. y = x, and needs a gradient when
/// there is a Record; the backward fills gradients with 1.
class TreeModule final : public nn::Module {
 public:
  TreeModule(std::string type_name, std::int64_t numel, bool has_forward = true) : Module(std::move(type_name)), has_forward_(has_forward) {
    if (numel > 0) weight_ = &add_parameter("weight", Shape{numel}, nn::Initializer::ones(), true);
  }
  TreeModule(std::string type_name, Shape shape)
      : Module(std::move(type_name)), weight_(&add_parameter("weight", shape, nn::Initializer::ones(), true)) {}

  template <class Size>
  TreeModule& child(std::string name, std::string type_name, Size size, bool has_forward = true) {
    if constexpr (std::is_same_v<Size, Shape>) {
      return add_child<TreeModule>(std::move(name), std::move(type_name), size);
    } else {
      return add_child<TreeModule>(std::move(name), std::move(type_name), static_cast<std::int64_t>(size), has_forward);
    }
  }
  [[nodiscard]] nn::Parameter& weight() { return *weight_; }
  void share(nn::Parameter& parameter) { share_parameter(parameter); }
  [[nodiscard]] bool has_forward() const override { return has_forward_; }

 protected:
  nn::Tensors do_forward(nn::Context& context, nn::Tensors, nn::Record* record) override {
    if (weight_) static_cast<void>(data_of(*weight_));
    for (const Child& each : children()) static_cast<void>(each.module->forward(context, {Tensor()}, nn::child_record(record)));
    Tensor y = context.make({1}, DType::f32);
    context.kernels.fill(context.compute, y, 1.0);
    y.needs_grad = record != nullptr;
    return nn::list_of(std::move(y));
  }
  nn::Tensors do_backward(nn::Context& context, nn::Record& record, nn::Tensors dys) override {
    for (std::size_t i = children().size(); i-- > 0;) {
      children()[i].module->backward(context, std::move(record.child(i)), dys);
    }
    if (weight_) {
      if (const nn::GradTarget target = weight_->write_grad(); target.view) {
        const Tensor one = context.make(weight_->shape, target.view.dtype);
        context.kernels.fill(context.compute, one, 1.0);
        context.kernels.scale(context.compute, one, 1.0, target.view, target.mode);
      }
    }
    return nn::Tensors(1);
  }

 private:
  nn::Parameter* weight_ = nullptr;
  bool has_forward_ = true;
};

}  // namespace mica::fsdp::testing
