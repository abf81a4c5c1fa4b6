// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "mica/nn/chain.hpp"

namespace mica::nn {

/// Runs modules one after another, in backward too (example in supervised_model.hpp).
/// Names are the given ones joined by dots ("blocks.0.up.weight"); type names are what wrap policies match.
class Sequential : public Module {
 public:
  explicit Sequential(std::string type_name = "sequential") : Module(std::move(type_name)) {}

  /// Appends a module made from `args`.
  template <class M, class... Args>
  M& add(std::string name, Args&&... args) {
    M& module = add_child<M>(std::move(name), std::forward<Args>(args)...);
    chain_.push_back(&module);
    return module;
  }

 protected:
  Tensors do_forward(Context& context, Tensors xs, Record* record) override {
    return chain_forward(context, chain_, std::move(xs), record);
  }
  Tensors do_backward(Context& context, Record& record, Tensors dys) override;
  Tensor* do_saved_input(Record& record) override { return chain_saved_input(chain_, record); }
  [[nodiscard]] std::span<Module* const> chain() const { return chain_; }

 private:
  std::vector<Module*> chain_;
};

/// y = x + f(x), f the modules added to it. x and f(x) have the same shape.
class Residual : public Sequential {
 public:
  explicit Residual(std::string type_name = "residual") : Sequential(std::move(type_name)) {}

 protected:
  Tensors do_forward(Context& context, Tensors xs, Record* record) override;
  Tensors do_backward(Context& context, Record& record, Tensors dys) override;
};

}  // namespace mica::nn
