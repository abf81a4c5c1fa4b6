// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "arguments.hpp"

// What every device demands of the operands of products. @throws Error naming the operand
namespace mica::arguments {

/// Of a linear layer with a weight [n, k] on m rows.
struct LinearDims {
  std::int64_t m, n, k;
};
LinearDims check_linear(ConstTensorView x, ConstTensorView w, ConstTensorView bias, ConstTensorView y);
LinearDims check_linear_backward_input(ConstTensorView dy, ConstTensorView w, ConstTensorView dx);
LinearDims check_linear_backward_params(ConstTensorView dy, ConstTensorView x, ConstTensorView dw, ConstTensorView dbias);
LinearDims check_linear_gelu(ConstTensorView x, ConstTensorView w, ConstTensorView bias, ConstTensorView pre, ConstTensorView y);
LinearDims check_linear_gelu_backward_input(ConstTensorView dy, ConstTensorView w, ConstTensorView pre, ConstTensorView dpre);

/// What head_loss() and head_loss_backward() take; dloss, dhidden and dw are the latter's, and it may go without loss,
/// dhidden or dw.
struct HeadTensors {
  ConstTensorView hidden, w, targets, dloss{};
  TensorView loss, dhidden{}, dw{};
};
struct HeadDims {
  std::int64_t rows, vocab, width;
};
/// @param what  "head_loss", which needs a loss, or "head_loss_backward", which needs a dloss
HeadDims check_head(std::string_view what, const HeadTensors& t);

}  // namespace mica::arguments
