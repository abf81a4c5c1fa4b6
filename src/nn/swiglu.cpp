// SPDX-License-Identifier: Apache-2.0
#include "mica/nn/swiglu.hpp"

#include "mica/nn/chain.hpp"
#include "mica/nn/fan_out.hpp"
#include "mica/nn/input_check.hpp"

namespace mica::nn {
namespace {
constexpr std::size_t kMlpInRecord = 0, kMlpOutRecord = 1;  // of the MLP
}  // namespace

Tensors SwiGlu::do_forward(Context& context, Tensors xs, Record* record) {
  expect_inputs(*this, xs, 2);
  const Tensor &gate = xs[0], &up = xs[1];
  require<Error>(gate.shape() == up.shape() && gate.dtype() == up.dtype(),
                 "the inputs of a '{}' are {} {} and {} {}, expected two of one shape and dtype", type_name(), gate.shape().to_string(),
                 dtype_name(gate.dtype()), up.shape().to_string(), dtype_name(up.dtype()));
  Tensor y = context.make(gate.shape(), gate.dtype());
  context.kernels.swiglu(context.compute, gate, up, y);
  y.needs_grad = record && (gate.needs_grad || up.needs_grad);
  if (y.needs_grad) record->saved = {gate, up};
  return list_of(std::move(y));
}

Tensors SwiGlu::do_backward(Context& context, Record& record, Tensors dys) {
  Tensors dxs(2);
  if (record.saved.empty()) return dxs;
  const Tensor gate = record.take(kGate), up = record.take(kUp), &dy = dys[0];
  if (record.needs_dx(kGate)) dxs[kGate] = gate.is_unique() ? gate : context.make(gate.shape(), gate.dtype());
  if (record.needs_dx(kUp)) dxs[kUp] = dy.is_unique() ? dy : context.make(up.shape(), up.dtype());
  context.kernels.swiglu_backward(context.compute, gate, up, dy, dxs[kGate], dxs[kUp]);
  return dxs;
}

Tensor SwiGlu::do_recompute_output(Context& context, Record& record) {
  const Tensor &gate = record.saved.at(kGate), &up = record.saved.at(kUp);
  Tensor y = context.make(gate.shape(), gate.dtype());
  y.needs_grad = true;
  context.kernels.swiglu(context.compute, gate, up, y);
  return y;
}

SwiGluMlp::SwiGluMlp(std::int64_t width, std::int64_t hidden, double weight_std) : Module("swiglu_mlp") {
  const LinearOptions options{.bias = false, .weight_std = weight_std};
  in_.push_back(&add_child<Linear>("gate_proj", width, hidden, options));
  in_.push_back(&add_child<Linear>("up_proj", width, hidden, options));
  out_.push_back(&add_child<SwiGlu>("act"));
  out_.push_back(&add_child<Linear>("down_proj", hidden, width, options));
}

Tensors SwiGluMlp::do_forward(Context& context, Tensors xs, Record* record) {
  expect_inputs(*this, xs, 1);
  xs = fan_out_forward(context, in_, xs[0], child_record(record));
  return chain_forward(context, out_, std::move(xs), child_record(record));
}

Tensors SwiGluMlp::do_backward(Context& context, Record& record, Tensors dys) {
  dys = chain_backward(context, out_, record.child(kMlpOutRecord), std::move(dys));
  return list_of(fan_out_backward(context, in_, record.child(kMlpInRecord), std::move(dys)));
}

Tensor* SwiGluMlp::do_saved_input(Record& record) { return fan_out_saved_input(record.child(kMlpInRecord)); }

}  // namespace mica::nn
