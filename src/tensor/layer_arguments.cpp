// SPDX-License-Identifier: Apache-2.0
#include "layer_arguments.hpp"

namespace mica::arguments {

ActivationName activation_name(Activation f) {
  switch (f) {
    case Activation::gelu:
      return {"gelu", "gelu_backward"};
    case Activation::relu:
      return {"relu", "relu_backward"};
    case Activation::silu:
      return {"silu", "silu_backward"};
    case Activation::tanh:
      return {"tanh", "tanh_backward"};
  }
  return {"?", "?"};
}

std::int64_t check_activation(Activation f, ConstTensorView x, ConstTensorView y) {
  const char* what = activation_name(f).forward;
  const std::int64_t n = x.numel();
  expect(what, "x", x, n, kFloats);
  expect(what, "y", y, n, {x.dtype});
  return n;
}

std::int64_t check_activation_backward(Activation f, ConstTensorView x, ConstTensorView dy, ConstTensorView dx) {
  const char* what = activation_name(f).backward;
  const std::int64_t n = x.numel();
  expect(what, "x", x, n, kFloats);
  expect(what, "dy", dy, n, {x.dtype});
  expect(what, "dx", dx, n, {x.dtype});
  return n;
}

std::int64_t check_swiglu(ConstTensorView gate, ConstTensorView up, ConstTensorView y) {
  const std::int64_t n = gate.numel();
  expect("swiglu", "gate", gate, n, kFloats);
  expect("swiglu", "up", up, n, {gate.dtype});
  expect("swiglu", "y", y, n, {gate.dtype});
  return n;
}

std::int64_t check_swiglu_backward(ConstTensorView gate, ConstTensorView up, ConstTensorView dy, ConstTensorView dgate,
                                   ConstTensorView dup) {
  const std::int64_t n = gate.numel();
  expect("swiglu_backward", "gate", gate, n, kFloats);
  expect("swiglu_backward", "up", up, n, {gate.dtype});
  expect("swiglu_backward", "dy", dy, n, {gate.dtype});
  expect_optional("swiglu_backward", "dgate", dgate, n, {gate.dtype});
  expect_optional("swiglu_backward", "dup", dup, n, {gate.dtype});
  require(!dgate || dgate.data != dup.data, "swiglu_backward: dgate and dup are one tensor, expected two");
  return n;
}

NormDims check_rms_norm(std::string_view what, const NormTensors& t) {
  const NormDims d{.rows = t.x.shape.rows(), .cols = t.x.shape.back()};
  expect(what, "x", t.x, d.rows * d.cols, kFloats);
  expect(what, "gamma", t.gamma, d.cols, {t.x.dtype});
  expect(what, "y", t.y, d.rows * d.cols, {t.x.dtype});
  expect_optional(what, "rstd", t.rstd, d.rows, {DType::f32});
  return d;
}

NormDims check_layer_norm(std::string_view what, const NormTensors& t) {
  const NormDims d = check_rms_norm(what, t);
  expect(what, "beta", t.beta, d.cols, {t.x.dtype});
  expect_optional(what, "mean", t.mean, d.rows, {DType::f32});
  require(static_cast<bool>(t.mean) == static_cast<bool>(t.rstd), "{}: expected both mean and rstd, or neither", what);
  return d;
}

namespace {

NormDims check_norm_backward(std::string_view what, const NormGradients& t) {
  const NormDims d{.rows = t.x.shape.rows(), .cols = t.x.shape.back()};
  expect(what, "x", t.x, d.rows * d.cols, kFloats);
  expect(what, "dy", t.dy, d.rows * d.cols, {t.x.dtype});
  expect(what, "gamma", t.gamma, d.cols, {t.x.dtype});
  expect(what, "rstd", t.rstd, d.rows, {DType::f32});
  expect_optional(what, "dx", t.dx, d.rows * d.cols, {t.x.dtype});
  expect_optional(what, "dgamma", t.dgamma, d.cols, kFloats);
  return d;
}

}  // namespace

NormDims check_rms_norm_backward(const NormGradients& t) { return check_norm_backward("rms_norm_backward", t); }

NormDims check_layer_norm_backward(const NormGradients& t) {
  const NormDims d = check_norm_backward("layer_norm_backward", t);
  expect("layer_norm_backward", "mean", t.mean, d.rows, {DType::f32});
  expect_optional("layer_norm_backward", "dbeta", t.dbeta, d.cols, kFloats);
  return d;
}

void check_norm_sum(std::string_view what, ConstTensorView a, ConstTensorView b, ConstTensorView sum) {
  expect(what, "sum", sum, sum.numel(), kFloats);
  expect(what, "a", a, sum.numel(), {sum.dtype});
  expect(what, "b", b, sum.numel(), {sum.dtype});
}

void check_embedding(ConstTensorView ids, ConstTensorView tokens, ConstTensorView positions, ConstTensorView y) {
  const std::int64_t width = tokens.shape.back();
  expect("embedding", "ids", ids, ids.numel(), {DType::i32});
  expect("embedding", "tokens", tokens, tokens.shape[0] * width, kFloats);
  expect_cols("embedding", "y", y, width, {tokens.dtype});
  expect("embedding", "y", y, ids.numel() * width, {tokens.dtype});
  if (!positions) return;
  expect_cols("embedding", "positions", positions, width, {tokens.dtype});
  if (positions.shape[0] < ids.shape.back()) {
    refuse("embedding", "positions", positions, fmt::format("at least {} rows", ids.shape.back()));
  }
}

void check_embedding_backward(ConstTensorView dy, ConstTensorView ids, ConstTensorView dtokens, ConstTensorView dpositions) {
  const std::int64_t width = dy.shape.back();
  const std::int64_t seq_len = ids.shape.back();
  expect("embedding_backward", "ids", ids, ids.numel(), {DType::i32});
  expect("embedding_backward", "dy", dy, ids.numel() * width, kFloats);
  if (dtokens) expect_cols("embedding_backward", "dtokens", dtokens, width, kFloats);
  if (!dpositions) return;
  expect_cols("embedding_backward", "dpositions", dpositions, width, kFloats);
  if (dpositions.shape[0] < seq_len) {
    refuse("embedding_backward", "dpositions", dpositions, fmt::format("at least {} rows", seq_len));
  }
}

void check_dropout(ConstTensorView x, double p, std::int64_t num_sequences, ConstTensorView y) {
  require(p >= 0 && p < 1, "dropout: probability {} is not in [0, 1)", p);
  expect("dropout", "x", x, x.numel(), kFloats);
  expect("dropout", "y", y, x.numel(), {x.dtype});
  if (x.shape.num_dims() == 0 || x.shape[0] != num_sequences) {
    refuse("dropout", "x", x, fmt::format("{} rows, one for each sequence", num_sequences));
  }
}

}  // namespace mica::arguments
