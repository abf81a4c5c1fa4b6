// SPDX-License-Identifier: Apache-2.0
#include "mica/nn/linear.hpp"

#include <utility>

#include "mica/nn/activation.hpp"
#include "mica/nn/input_check.hpp"

#include "input_gradient.hpp"

namespace mica::nn {

Linear::Linear(std::int64_t in, std::int64_t out, LinearOptions options)
    : Module("linear"), in_(in), out_(out), weight_(add_parameter("weight", {out, in}, Initializer::normal(options.weight_std), true)) {
  if (options.bias) bias_ = &add_parameter("bias", {out}, Initializer::zeros(), false);
}

Tensors Linear::do_forward(Context& context, Tensors xs, Record* record) {
  expect_inputs(*this, xs, 1);
  const Tensor& x = xs[0];
  const ConstTensorView weight = data_of(weight_);
  expect_activation(*this, x, in_, weight.dtype);
  Tensor y = context.make(with_last_dim(x.shape(), out_), weight.dtype);
  const ConstTensorView bias = bias_ ? data_of(*bias_) : ConstTensorView();
  context.kernels.linear(context.compute, x, weight, bias, y);
  if (record) {
    y.needs_grad = x.needs_grad || trains();
    record->saved = {trains() ? x : Tensor()};
  }
  return list_of(std::move(y));
}

Tensors Linear::forward_with_gelu(Context& context, const Tensors& xs, Record* record, Record* of_gelu) {
  expect_inputs(*this, xs, 1);
  const Tensor& x = xs[0];
  const ConstTensorView weight = data_of(weight_);
  expect_activation(*this, x, in_, weight.dtype);
  const Shape shape = with_last_dim(x.shape(), out_);
  Tensor pre;  // the GELU's input
  if (record && (x.needs_grad || trains())) {
    pre = context.make(shape, weight.dtype);
    pre.needs_grad = true;
  }
  Tensor y = context.make(shape, weight.dtype);
  context.kernels.linear_gelu(context.compute, x, weight, bias_ ? data_of(*bias_) : ConstTensorView(), pre, y);
  if (record) {
    record->saved = {trains() ? x : Tensor()};
    of_gelu->input_needs_grad = {pre.needs_grad};
    Gelu::keep_input(of_gelu, pre, y);
  }
  return list_of(std::move(y));
}

Tensors Linear::do_backward(Context& context, Record& record, Tensors dys) {
  const Tensor& dy = dys[0];
  // The parameters first: afterwards the input's memory is free for dx.
  write_parameter_gradients(context, record.take(kInput), dy);
  if (!record.needs_dx(0)) return Tensors(1);
  InputGradient input = input_gradient(context, record, dy, with_last_dim(dy.shape(), in_));
  context.kernels.linear_backward_input(context.compute, dy, data_of(weight_), input.dx, input.mode);
  return list_of(std::move(input.dx));
}

Tensors Linear::backward_with_gelu(Context& context, Record& of_gelu, Record& record, const Tensors& dys) {
  const Tensor& dy = dys[0];
  write_parameter_gradients(context, record.take(kInput), dy);
  const Tensor pre = of_gelu.take(Gelu::kInput);
  Tensor dpre = context.make(pre.shape(), pre.dtype());
  context.kernels.linear_gelu_backward_input(context.compute, dy, data_of(weight_), pre, dpre);
  return list_of(std::move(dpre));
}

void Linear::write_parameter_gradients(Context& context, const Tensor& x, const Tensor& dy) {
  if (!x) return;  // everything was frozen in the forward
  const GradTarget dw = weight_.write_grad();
  const GradTarget db = bias_ ? bias_->write_grad() : GradTarget();
  const bool share_a_call = dw.view && db.view && dw.mode == db.mode;
  if (dw.view) {
    context.kernels.linear_backward_params(context.compute, dy, x, dw.view, share_a_call ? db.view : TensorView(), dw.mode);
  }
  if (db.view && !share_a_call) {
    // Only the bias trains, or it was unfrozen later than the weight: too rare for a kernel of its own.
    const Tensor unread = context.make(weight_.shape, db.view.dtype, MemoryRole::workspace);
    context.kernels.linear_backward_params(context.compute, dy, x, unread, db.view, db.mode);
  }
}

Tensor* Linear::do_saved_input(Record& record) { return record.saved.empty() ? nullptr : &record.saved[kInput]; }

}  // namespace mica::nn
