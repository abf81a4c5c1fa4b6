// SPDX-License-Identifier: Apache-2.0
#include "mica/nn/head_loss.hpp"

#include "mica/nn/input_check.hpp"
#include "mica/nn/key_value_cache.hpp"

namespace mica::nn {

HeadLoss::HeadLoss(std::int64_t vocab_size, std::int64_t width, double weight_std)
    : Module("head_loss"), weight_(add_parameter("weight", {vocab_size, width}, Initializer::normal(weight_std), true)) {}

HeadLoss::HeadLoss(Parameter& weight) : Module("head_loss"), weight_(weight) { share_parameter(weight); }

namespace {
double mean_over_rows(const Tensor& targets) { return targets.numel() == 0 ? 0.0 : 1.0 / static_cast<double>(targets.numel()); }
}  // namespace

namespace {

/// Of hidden [B, T, width], the rows whose logits Context::cache asks for.
Tensor wanted_rows(const Context& context, const Tensor& hidden) {
  const Shape& shape = hidden.shape();
  if (context.cache->logits() == KeyValueCache::Logits::all || shape[1] == 1) return hidden;
  const std::int64_t width = shape[2];
  Tensor last = context.make({shape[0], width}, hidden.dtype());
  const BlockCopy copy{
      .src = (shape[1] - 1) * width, .numel = width, .count = shape[0], .src_stride = shape[1] * width, .dst_stride = width};
  context.kernels.copy_blocks(context.compute, hidden, last, {&copy, 1});
  return last;
}

}  // namespace

Tensors HeadLoss::do_forward(Context& context, Tensors xs, Record* record) {
  expect_inputs(*this, xs, xs.size() == 1 ? 1 : 2);
  const Tensor& hidden = xs[0];
  expect_activation(*this, hidden, weight_.shape.back(), data_of(weight_).dtype);
  if (xs.size() == 1) return list_of(logits(context, context.cache ? wanted_rows(context, hidden) : hidden));

  const Tensor& targets = xs[1];
  expect_ids(*this, targets);
  require<Error>(targets.numel() == hidden.shape().rows(), "a '{}' got {} targets for {} rows of hidden states", type_name(),
                 targets.numel(), hidden.shape().rows());
  Tensor loss = context.make({1}, DType::f32);
  loss.needs_grad = record && (hidden.needs_grad || weight_.requires_grad);
  const bool fill_in_backward = loss.needs_grad && context.loss_in_backward;
  if (loss.needs_grad) record->saved = {hidden, targets, fill_in_backward ? loss : Tensor()};
  if (!fill_in_backward) {
    context.kernels.head_loss(context.compute, hidden, data_of(weight_), targets, mean_over_rows(targets), loss);
  }
  return list_of(std::move(loss));
}

Tensors HeadLoss::do_backward(Context& context, Record& record, Tensors dys) {
  require<Error>(record.input_needs_grad.size() == 2,
                 "logits carry no gradient: a '{}' whose loss is trained gets {{hidden, targets}} as inputs", type_name());
  Tensors dxs(2);
  if (record.saved.empty()) return dxs;
  const Tensor hidden = record.take(kHidden), targets = record.take(kTargets), loss = record.take(kLoss);
  if (record.needs_dx(0)) dxs[0] = context.make(hidden.shape(), hidden.dtype());
  const GradTarget dweight = weight_.write_grad_in_turns();
  context.kernels.head_loss_backward(context.compute, hidden, data_of(weight_), targets, mean_over_rows(targets), dys[0], loss, dxs[0],
                                     dweight.view, dweight.mode, dweight.turns);
  return dxs;
}

Tensor* HeadLoss::do_saved_input(Record& record) { return record.saved.empty() ? nullptr : &record.saved[kHidden]; }

Tensor HeadLoss::logits(Context& context, const Tensor& hidden) const {
  Tensor out = context.make({hidden.shape().rows(), weight_.shape[0]}, DType::f32);
  context.kernels.logits(context.compute, hidden, data_of(weight_), out);
  return out;
}

}  // namespace mica::nn
