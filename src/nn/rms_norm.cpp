#include "mica/nn/rms_norm.hpp"

#include "mica/nn/input_check.hpp"

namespace mica::nn {

RmsNorm::RmsNorm(std::int64_t width, double eps)
    : Module("rms_norm"),
      width_(width),
      eps_(eps),
      weight_(add_parameter("weight", {width}, Initializer::ones(), false)) {}

Tensors RmsNorm::do_forward(Context& context, Tensors xs, Record* record) {
  expect_inputs(*this, xs, 1);
  return normalise(context, xs[0], record);
}

Tensors RmsNorm::normalise(Context& context, const Tensor& x, Record* record, const Tensor* a, const Tensor* b) {
  const ConstTensorView weight = data_of(weight_);
  expect_activation(*this, x, width_, weight.dtype);
  Tensor y = context.make(x.shape(), x.dtype());
  y.needs_grad = record && (x.needs_grad || weight_.requires_grad);
  Tensor rstd;
  if (y.needs_grad) {
    rstd = context.make({x.shape().rows()}, DType::f32);
    record->saved = {x, rstd};
  }
  if (a) {
    context.kernels.add_rms_norm(context.compute, *a, *b, x, weight, eps_, y, rstd);
  } else {
    context.kernels.rms_norm(context.compute, x, weight, eps_, y, rstd);
  }
  return list_of(std::move(y));
}

Tensors RmsNorm::do_backward(Context& context, Record& record, Tensors dys) {
  if (record.saved.empty()) return Tensors(1);
  const Tensor x = record.take(kInput), rstd = record.take(kRstd);

  Tensor dx;
  Write dx_mode = Write::overwrite;
  if (record.needs_dx(0)) {
    GradientSum* sum = record.dx_sum;
    if (sum && sum->accepts(dys[0])) {
      dx = sum->sum;
      dx_mode = Write::accumulate;
      sum->used = true;
    } else {
      dx = context.make(x.shape(), x.dtype());
    }
  }
  const GradTarget dweight = weight_.write_grad();
  context.kernels.rms_norm_backward(context.compute, dys[0], x, data_of(weight_), rstd, dx, dx_mode, dweight.view,
                                    dweight.mode);
  return list_of(std::move(dx));
}

Tensor RmsNorm::do_recompute_output(Context& context, Record& record) {
  const Tensor& x = record.saved.at(kInput);
  Tensor y = context.make(x.shape(), x.dtype());
  y.needs_grad = true;
  context.kernels.rms_norm(context.compute, x, data_of(weight_), eps_, y, {});
  return y;
}

Tensor* RmsNorm::do_saved_input(Record& record) { return record.saved.empty() ? nullptr : &record.saved[kInput]; }

}  // namespace mica::nn
