// SPDX-License-Identifier: Apache-2.0
#include "mica/nn/activation.hpp"

#include "mica/nn/input_check.hpp"

namespace mica::nn {

Tensors ActivationLayer::do_forward(Context& context, Tensors xs, Record* record) {
  expect_inputs(*this, xs, 1);
  const Tensor& x = xs[0];
  Tensor y = context.make(x.shape(), x.dtype());
  context.kernels.activation(context.compute, function_, x, y);
  keep_input(record, x, y);
  return list_of(std::move(y));
}

void ActivationLayer::keep_input(Record* record, const Tensor& x, Tensor& y) {
  y.needs_grad = record && x.needs_grad;
  if (y.needs_grad) record->saved = {x};
}

Tensors ActivationLayer::do_backward(Context& context, Record& record, Tensors dys) {
  if (record.saved.empty()) return Tensors(1);
  const Tensor x = record.take(kInput);
  const Tensor dx = dys[0].is_unique() ? dys[0] : context.make(x.shape(), x.dtype());
  context.kernels.activation_backward(context.compute, function_, x, dys[0], dx);
  return list_of(dx);
}

Tensor ActivationLayer::do_recompute_output(Context& context, Record& record) {
  const Tensor& x = record.saved.at(kInput);
  Tensor y = context.make(x.shape(), x.dtype());
  y.needs_grad = true;
  context.kernels.activation(context.compute, function_, x, y);
  return y;
}

Tensor* ActivationLayer::do_saved_input(Record& record) { return record.saved.empty() ? nullptr : &record.saved[kInput]; }

}  // namespace mica::nn
