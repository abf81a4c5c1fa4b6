// SPDX-License-Identifier: Apache-2.0
#include "mica/nn/norm.hpp"

#include <utility>

#include "mica/nn/input_check.hpp"

#include "input_gradient.hpp"

namespace mica::nn {
namespace {

// record.saved
constexpr std::size_t kInput = 0;  // [..., width]
constexpr std::size_t kMean = 1;   // [M] f32; absent unless centred
constexpr std::size_t kRstd = 2;   // [M] f32

}  // namespace

Norm::Norm(std::string type_name, std::int64_t width, double eps, bool is_centred)
    : Module(std::move(type_name)), width_(width), eps_(eps), weight_(add_parameter("weight", {width}, Initializer::ones(), false)) {
  if (is_centred) bias_ = &add_parameter("bias", {width}, Initializer::zeros(), false);
}

Tensors Norm::do_forward(Context& context, Tensors xs, Record* record) {
  expect_inputs(*this, xs, 1);
  return normalise(context, xs[0], record);
}

Tensors Norm::normalise(Context& context, const Tensor& x, Record* record, const Tensor* a, const Tensor* b) {
  expect_activation(*this, x, width_, data_of(weight_).dtype);
  Tensor y = context.make(x.shape(), x.dtype());
  y.needs_grad = record && (x.needs_grad || trains());
  Tensor mean, rstd;
  if (y.needs_grad) {
    if (bias_) mean = context.make({x.shape().rows()}, DType::f32);
    rstd = context.make({x.shape().rows()}, DType::f32);
    record->saved = {x, mean, rstd};
  }
  compute(context, a, b, x, y, mean, rstd);
  return list_of(std::move(y));
}

void Norm::compute(Context& context, const Tensor* a, const Tensor* b, const Tensor& x, const Tensor& y, const Tensor& mean,
                   const Tensor& rstd) const {
  Kernels& kernels = context.kernels;
  Stream& stream = context.compute;
  const ConstTensorView weight = data_of(weight_);
  if (bias_ && a) {
    kernels.add_layer_norm(stream, *a, *b, x, weight, data_of(*bias_), eps_, y, mean, rstd);
  } else if (bias_) {
    kernels.layer_norm(stream, x, weight, data_of(*bias_), eps_, y, mean, rstd);
  } else if (a) {
    kernels.add_rms_norm(stream, *a, *b, x, weight, eps_, y, rstd);
  } else {
    kernels.rms_norm(stream, x, weight, eps_, y, rstd);
  }
}

Tensors Norm::do_backward(Context& context, Record& record, Tensors dys) {
  if (record.saved.empty()) return Tensors(1);
  const Tensor x = record.take(kInput), mean = record.take(kMean), rstd = record.take(kRstd);
  const Tensor& dy = dys[0];
  InputGradient input = input_gradient(context, record, dy, x.shape());
  Kernels& kernels = context.kernels;
  const ConstTensorView weight = data_of(weight_);
  const GradTarget dweight = weight_.write_grad();
  if (!bias_) {
    kernels.rms_norm_backward(context.compute, dy, x, weight, rstd, input.dx, input.mode, dweight.view, dweight.mode);
    return list_of(std::move(input.dx));
  }
  const GradTarget dbias = bias_->write_grad();
  const auto backward = [&](TensorView dx, TensorView dw, TensorView db, Write mode) {
    kernels.layer_norm_backward(context.compute, dy, x, weight, mean, rstd, dx, input.mode, dw, db, mode);
  };
  if (dweight.view && dbias.view && dweight.mode != dbias.mode) {  // one was unfrozen later than the other
    backward(input.dx, dweight.view, {}, dweight.mode);
    backward({}, {}, dbias.view, dbias.mode);
  } else {
    backward(input.dx, dweight.view, dbias.view, dweight.view ? dweight.mode : dbias.mode);
  }
  return list_of(std::move(input.dx));
}

Tensor Norm::do_recompute_output(Context& context, Record& record) {
  const Tensor& x = record.saved.at(kInput);
  Tensor y = context.make(x.shape(), x.dtype());
  y.needs_grad = true;
  // Without mean and rstd as outputs: the kernel computes the same ones from the same x.
  compute(context, nullptr, nullptr, x, y, {}, {});
  return y;
}

Tensor* Norm::do_saved_input(Record& record) { return record.saved.empty() ? nullptr : &record.saved[kInput]; }

}  // namespace mica::nn
