// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "mica/nn/module.hpp"

namespace mica::nn {

struct LinearOptions {
  bool bias = true;
  double weight_std = 0.02;  ///< of the normal initial weight; the bias starts at zero
};

/// y = x weight^T + bias. x [..., in] -> y [..., out]; "weight" [out, in], "bias" [out].
class Linear final : public Module {
 public:
  Linear(std::int64_t in, std::int64_t out, LinearOptions options = {});

  /// record.saved: the input, absent when weight and bias are frozen.
  static constexpr std::size_t kInput = 0;

  // Only for fused.hpp ([Note: fused neighbours]), which has checked that neither module runs alone.
  /// The forward together with that of the Gelu after it.
  [[nodiscard]] Tensors forward_with_gelu(Context& context, const Tensors& xs, Record* record, Record* of_gelu);
  /// The backward together with that of the Gelu before it, whose input is in of_gelu. @returns the gradient of that input.
  [[nodiscard]] Tensors backward_with_gelu(Context& context, Record& of_gelu, Record& record, const Tensors& dys);

 private:
  Tensors do_forward(Context& context, Tensors xs, Record* record) override;
  Tensors do_backward(Context& context, Record& record, Tensors dys) override;
  Tensor* do_saved_input(Record& record) override;
  void write_parameter_gradients(Context& context, const Tensor& x, const Tensor& dy);

  std::int64_t in_, out_;
  Parameter& weight_;
  Parameter* bias_ = nullptr;
};

}  // namespace mica::nn
