// SPDX-License-Identifier: Apache-2.0
#include "product_arguments.hpp"

namespace mica::arguments {

LinearDims check_linear(ConstTensorView x, ConstTensorView w, ConstTensorView bias, ConstTensorView y) {
  const LinearDims d{.m = x.shape.rows(), .n = w.shape[0], .k = w.shape.back()};
  expect("linear", "w", w, d.n * d.k, kFloats);
  expect_cols("linear", "x", x, d.k, kFloats);
  expect_optional("linear", "bias", bias, d.n, kFloats);
  expect("linear", "y", y, d.m * d.n, kFloats);
  return d;
}

LinearDims check_linear_backward_input(ConstTensorView dy, ConstTensorView w, ConstTensorView dx) {
  const LinearDims d{.m = dy.shape.rows(), .n = w.shape[0], .k = w.shape.back()};
  expect("linear_backward_input", "w", w, d.n * d.k, kFloats);
  expect_cols("linear_backward_input", "dy", dy, d.n, kFloats);
  expect("linear_backward_input", "dx", dx, d.m * d.k, kFloats);
  return d;
}

LinearDims check_linear_backward_params(ConstTensorView dy, ConstTensorView x, ConstTensorView dw, ConstTensorView dbias) {
  const LinearDims d{.m = x.shape.rows(), .n = dw.shape[0], .k = dw.shape.back()};
  expect("linear_backward_params", "dw", dw, d.n * d.k, kFloats);
  expect_cols("linear_backward_params", "x", x, d.k, kFloats);
  expect_cols("linear_backward_params", "dy", dy, d.n, kFloats);
  expect("linear_backward_params", "dy", dy, d.m * d.n, kFloats);
  expect_optional("linear_backward_params", "dbias", dbias, d.n, kFloats);
  return d;
}

namespace {

/// Checks a linear layer whose operands have one dtype, except for the bias.
LinearDims check_linear_of_one_dtype(std::string_view what, ConstTensorView x, ConstTensorView w, ConstTensorView bias, ConstTensorView y) {
  const LinearDims d{.m = x.shape.rows(), .n = w.shape[0], .k = w.shape.back()};
  expect(what, "w", w, d.n * d.k, kFloats);
  expect_cols(what, "x", x, d.k, {w.dtype});
  expect_optional(what, "bias", bias, d.n, kFloats);
  expect(what, "y", y, d.m * d.n, {w.dtype});
  return d;
}

}  // namespace

LinearDims check_linear_gelu(ConstTensorView x, ConstTensorView w, ConstTensorView bias, ConstTensorView pre, ConstTensorView y) {
  const LinearDims d = check_linear_of_one_dtype("linear_gelu", x, w, bias, y);
  expect_optional("linear_gelu", "pre", pre, d.m * d.n, {w.dtype});
  return d;
}

LinearDims check_linear_gelu_backward_input(ConstTensorView dy, ConstTensorView w, ConstTensorView pre, ConstTensorView dpre) {
  const LinearDims d{.m = dy.shape.rows(), .n = w.shape[0], .k = w.shape.back()};
  expect("linear_gelu_backward_input", "w", w, d.n * d.k, kFloats);
  expect_cols("linear_gelu_backward_input", "dy", dy, d.n, {w.dtype});
  expect("linear_gelu_backward_input", "pre", pre, d.m * d.k, {w.dtype});
  expect("linear_gelu_backward_input", "dpre", dpre, d.m * d.k, {w.dtype});
  return d;
}

HeadDims check_head(std::string_view what, const HeadTensors& t) {
  const HeadDims d{.rows = t.hidden.shape.rows(), .vocab = t.w.shape[0], .width = t.w.shape.back()};
  if (what == "head_loss") expect(what, "loss", t.loss, 1, {DType::f32});
  if (what == "head_loss_backward") expect(what, "dloss", t.dloss, 1, {DType::f32});
  expect(what, "w", t.w, d.vocab * d.width, kFloats);
  expect_cols(what, "hidden", t.hidden, d.width, {t.w.dtype});
  expect(what, "targets", t.targets, d.rows, {DType::i32});
  expect_optional(what, "loss", t.loss, 1, {DType::f32});
  expect_optional(what, "dhidden", t.dhidden, d.rows * d.width, kFloats);
  expect_optional(what, "dw", t.dw, d.vocab * d.width, kFloats);
  return d;
}

}  // namespace mica::arguments
