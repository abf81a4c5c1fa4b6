// SPDX-License-Identifier: Apache-2.0
#include "mica/nn/losses.hpp"

#include "mica/nn/input_check.hpp"

namespace mica::nn {
namespace {
constexpr std::size_t kX = 0, kTargets = 1;  // record.saved
}  // namespace

Tensors Loss::do_forward(Context& context, Tensors xs, Record* record) {
  expect_inputs(*this, xs, xs.size() == 1 ? 1 : 2);
  if (xs.size() == 1) return xs;
  check(xs[kX], xs[kTargets]);
  Tensor loss = context.make({1}, DType::f32);
  compute(context, xs[kX], xs[kTargets], loss);
  loss.needs_grad = record && xs[kX].needs_grad;
  if (loss.needs_grad) record->saved = std::move(xs);
  return list_of(std::move(loss));
}

Tensors Loss::do_backward(Context& context, Record& record, Tensors dys) {
  if (record.input_needs_grad.size() == 1) return dys;
  Tensors dxs(2);
  if (record.saved.empty()) return dxs;
  const Tensor x = record.take(kX), targets = record.take(kTargets);
  dxs[kX] = x.is_unique() ? x : context.make(x.shape(), x.dtype());
  compute_gradient(context, x, targets, dys[0], dxs[kX]);
  return dxs;
}

void MeanElementLoss::check(const Tensor& x, const Tensor& targets) const {
  require<Error>(x.shape() == targets.shape(), "the inputs of a '{}' have shapes {} (outputs) and {} (targets), expected the same",
                 type_name(), x.shape().to_string(), targets.shape().to_string());
  require<Error>(targets.dtype() == DType::f32 || targets.dtype() == x.dtype(),
                 "a '{}' takes targets as f32 or in the outputs' dtype {}, got {}", type_name(), dtype_name(x.dtype()),
                 dtype_name(targets.dtype()));
}

void MeanElementLoss::compute(Context& context, const Tensor& x, const Tensor& targets, const Tensor& loss) const {
  context.kernels.element_loss(context.compute, function_, x, targets, loss);
}

void MeanElementLoss::compute_gradient(Context& context, const Tensor& x, const Tensor& targets, const Tensor& dloss,
                                       const Tensor& dx) const {
  context.kernels.element_loss_backward(context.compute, function_, x, targets, dloss, dx);
}

void CrossEntropyLoss::check(const Tensor& x, const Tensor& targets) const {
  require<Error>(targets.dtype() == DType::i32, "a '{}' takes class ids as int32, got {}", type_name(), dtype_name(targets.dtype()));
  require<Error>(x.shape().num_dims() > 0 && targets.numel() == x.shape().rows(),
                 "a '{}' got outputs {} and targets {}, expected a target for each row of the outputs", type_name(), x.shape().to_string(),
                 targets.shape().to_string());
}

void CrossEntropyLoss::compute(Context& context, const Tensor& x, const Tensor& targets, const Tensor& loss) const {
  context.kernels.cross_entropy(context.compute, x, targets, ignore_index_, loss);
}

void CrossEntropyLoss::compute_gradient(Context& context, const Tensor& x, const Tensor& targets, const Tensor& dloss,
                                        const Tensor& dx) const {
  context.kernels.cross_entropy_backward(context.compute, x, targets, ignore_index_, dloss, dx);
}

}  // namespace mica::nn
