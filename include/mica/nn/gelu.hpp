#pragma once

#include "mica/nn/module.hpp"

namespace mica::nn {

/// GELU in its tanh approximation (GPT-2's "gelu_new"), elementwise. Makes its output again on request.
class Gelu final : public Module {
 public:
  Gelu() : Module("gelu") {}

  static constexpr std::size_t kInput = 0;  ///< record.saved

  /// What its forward from x to y leaves for backward. `record` may be null, and x absent where it needs no gradient.
  static void keep_input(Record* record, const Tensor& x, Tensor& y);

 private:
  Tensors do_forward(Context& context, Tensors xs, Record* record) override;
  Tensors do_backward(Context& context, Record& record, Tensors dys) override;
  bool recomputes_output(const Record& record) const override { return !record.saved.empty(); }
  Tensor do_recompute_output(Context& context, Record& record) override;
  Tensor* do_saved_input(Record& record) override;
};

}  // namespace mica::nn
