// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "mica/nn/linear.hpp"

namespace mica::nn {

/// y = silu(gate) * up, silu(x) = x / (1 + e^-x). Inputs {gate, up} of the same shape.
/// Recomputes its output on request ([Note: recomputed outputs]).
class SwiGlu final : public Module {
 public:
  SwiGlu() : Module("swiglu") {}

  /// record.saved
  static constexpr std::size_t kGate = 0, kUp = 1;

 private:
  Tensors do_forward(Context& context, Tensors xs, Record* record) override;
  Tensors do_backward(Context& context, Record& record, Tensors dys) override;
  bool recomputes_output(const Record& record) const override { return !record.saved.empty(); }
  Tensor do_recompute_output(Context& context, Record& record) override;
};

/// y = down_proj(silu(gate_proj(x)) * up_proj(x)), Llama's MLP. x [..., width]; "gate_proj.weight" and "up_proj.weight"
/// [hidden, width], "down_proj.weight" [width, hidden]; no biases.
class SwiGluMlp final : public Module {
 public:
  SwiGluMlp(std::int64_t width, std::int64_t hidden, double weight_std = 0.02);

 private:
  Tensors do_forward(Context& context, Tensors xs, Record* record) override;
  Tensors do_backward(Context& context, Record& record, Tensors dys) override;
  Tensor* do_saved_input(Record& record) override;

  std::vector<Module*> in_;   // gate_proj, up_proj
  std::vector<Module*> out_;  // act, down_proj
};

}  // namespace mica::nn
