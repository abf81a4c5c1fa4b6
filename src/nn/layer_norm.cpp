#include "mica/nn/layer_norm.hpp"

#include "mica/nn/input_check.hpp"

namespace mica::nn {

LayerNorm::LayerNorm(std::int64_t width, double eps)
    : Module("layer_norm"),
      width_(width),
      eps_(eps),
      weight_(add_parameter("weight", {width}, Initializer::ones(), false)),
      bias_(add_parameter("bias", {width}, Initializer::zeros(), false)) {}

Tensors LayerNorm::do_forward(Context& context, Tensors xs, Record* record) {
  expect_inputs(*this, xs, 1);
  return normalise(context, xs[0], record);
}

Tensors LayerNorm::normalise(Context& context, const Tensor& x, Record* record, const Tensor* a, const Tensor* b) {
  const ConstTensorView weight = data_of(weight_);
  expect_activation(*this, x, width_, weight.dtype);
  Tensor y = context.make(x.shape(), x.dtype());
  y.needs_grad = record && (x.needs_grad || weight_.requires_grad || bias_.requires_grad);
  Tensor mean, rstd;
  if (y.needs_grad) {
    mean = context.make({x.shape().rows()}, DType::f32);
    rstd = context.make({x.shape().rows()}, DType::f32);
    record->saved = {x, mean, rstd};
  }
  if (a) {
    context.kernels.add_layer_norm(context.compute, *a, *b, x, weight, data_of(bias_), eps_, y, mean, rstd);
  } else {
    context.kernels.layer_norm(context.compute, x, weight, data_of(bias_), eps_, y, mean, rstd);
  }
  return list_of(std::move(y));
}

Tensors LayerNorm::do_backward(Context& context, Record& record, Tensors dys) {
  if (record.saved.empty()) return Tensors(1);
  const Tensor x = record.take(kInput), mean = record.take(kMean), rstd = record.take(kRstd);

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
  const GradTarget dweight = weight_.write_grad(), dbias = bias_.write_grad();
  const auto backward = [&](TensorView dx_view, TensorView dw, TensorView db, Write mode) {
    context.kernels.layer_norm_backward(context.compute, dys[0], x, data_of(weight_), mean, rstd, dx_view, dx_mode, dw,
                                        db, mode);
  };
  if (dweight.view && dbias.view && dweight.mode != dbias.mode) {  // one was thawed later than the other
    backward(dx, dweight.view, {}, dweight.mode);
    backward({}, {}, dbias.view, dbias.mode);
  } else {
    backward(dx, dweight.view, dbias.view, dweight.view ? dweight.mode : dbias.mode);
  }
  return list_of(std::move(dx));
}

Tensor LayerNorm::do_recompute_output(Context& context, Record& record) {
  const Tensor& x = record.saved.at(kInput);
  Tensor y = context.make(x.shape(), x.dtype());
  y.needs_grad = true;
  // Without mean and rstd as outputs: the kernel computes the same ones from the same x.
  context.kernels.layer_norm(context.compute, x, data_of(weight_), data_of(bias_), eps_, y, {}, {});
  return y;
}

Tensor* LayerNorm::do_saved_input(Record& record) { return record.saved.empty() ? nullptr : &record.saved[kInput]; }

}  // namespace mica::nn
