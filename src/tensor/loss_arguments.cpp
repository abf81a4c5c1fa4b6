// SPDX-License-Identifier: Apache-2.0
#include "loss_arguments.hpp"

namespace mica::arguments {
namespace {

std::int64_t check_outputs(std::string_view what, ConstTensorView x, ConstTensorView targets) {
  const std::int64_t n = x.numel();
  expect(what, "x", x, n, kFloats);
  expect(what, "targets", targets, n, {DType::f32, x.dtype});
  return n;
}

ClassDims check_logits(std::string_view what, ConstTensorView logits, ConstTensorView targets) {
  expect(what, "logits", logits, logits.numel(), kFloats);
  if (logits.shape.num_dims() == 0 || logits.shape.back() == 0) refuse(what, "logits", logits, "at least one class in its last dim");
  const ClassDims d{.rows = logits.shape.rows(), .classes = logits.shape.back()};
  expect(what, "targets", targets, d.rows, {DType::i32});
  return d;
}

}  // namespace

std::int64_t check_element_loss(ConstTensorView x, ConstTensorView targets, ConstTensorView loss) {
  expect("element_loss", "loss", loss, 1, {DType::f32});
  return check_outputs("element_loss", x, targets);
}

std::int64_t check_element_loss_backward(ConstTensorView x, ConstTensorView targets, ConstTensorView dloss, ConstTensorView dx) {
  const std::int64_t n = check_outputs("element_loss_backward", x, targets);
  expect("element_loss_backward", "dloss", dloss, 1, {DType::f32});
  expect("element_loss_backward", "dx", dx, n, {x.dtype});
  return n;
}

ClassDims check_cross_entropy(ConstTensorView logits, ConstTensorView targets, ConstTensorView loss) {
  expect("cross_entropy", "loss", loss, 1, {DType::f32});
  return check_logits("cross_entropy", logits, targets);
}

ClassDims check_cross_entropy_backward(ConstTensorView logits, ConstTensorView targets, ConstTensorView dloss, ConstTensorView dlogits) {
  const ClassDims d = check_logits("cross_entropy_backward", logits, targets);
  expect("cross_entropy_backward", "dloss", dloss, 1, {DType::f32});
  expect("cross_entropy_backward", "dlogits", dlogits, d.rows * d.classes, {logits.dtype});
  return d;
}

}  // namespace mica::arguments
