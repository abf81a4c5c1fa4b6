// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "mica/nn/module.hpp"

namespace mica::nn {

/// Base of Gelu, Relu, Silu and Tanh: y = f(x), elementwise. Recomputes its output on request ([Note: recomputed outputs]).
class ActivationLayer : public Module {
 public:
  static constexpr std::size_t kInput = 0;  ///< record.saved

  /// Saves what backward needs of a forward from x to y. `record` may be null, and x absent where it needs no gradient.
  static void keep_input(Record* record, const Tensor& x, Tensor& y);

 protected:
  ActivationLayer(std::string type_name, Activation function) : Module(std::move(type_name)), function_(function) {}

 private:
  Tensors do_forward(Context& context, Tensors xs, Record* record) override;
  Tensors do_backward(Context& context, Record& record, Tensors dys) override;
  bool recomputes_output(const Record& record) const override { return !record.saved.empty(); }
  Tensor do_recompute_output(Context& context, Record& record) override;
  Tensor* do_saved_input(Record& record) override;

  Activation function_;
};

/// GELU in its tanh approximation (GPT-2's "gelu_new").
class Gelu final : public ActivationLayer {
 public:
  Gelu() : ActivationLayer("gelu", Activation::gelu) {}
};

/// max(0, x)
class Relu final : public ActivationLayer {
 public:
  Relu() : ActivationLayer("relu", Activation::relu) {}
};

/// x / (1 + e^-x)
class Silu final : public ActivationLayer {
 public:
  Silu() : ActivationLayer("silu", Activation::silu) {}
};

class Tanh final : public ActivationLayer {
 public:
  Tanh() : ActivationLayer("tanh", Activation::tanh) {}
};

}  // namespace mica::nn
