// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "mica/nn/module.hpp"

namespace mica::nn {

// Losses of a model's outputs x, means as PyTorch's with reduction="mean":
//   {x, targets} -> {loss [1] f32}
//   {x}          -> {x}, for evaluation and prediction; a gradient passes unchanged
// They have no parameters. Used as the head of a SupervisedModel, or called directly. The mean is over one micro-batch; the
// micro-batches of all ranks and rounds have equal weights.

class Loss : public Module {
 protected:
  explicit Loss(std::string type_name) : Module(std::move(type_name)) {}

 private:
  Tensors do_forward(Context& context, Tensors xs, Record* record) final;
  Tensors do_backward(Context& context, Record& record, Tensors dys) final;

  /// @throws Error unless the targets fit x.
  virtual void check(const Tensor& x, const Tensor& targets) const = 0;
  virtual void compute(Context& context, const Tensor& x, const Tensor& targets, const Tensor& loss) const = 0;
  /// dx may be x.
  virtual void compute_gradient(Context& context, const Tensor& x, const Tensor& targets, const Tensor& dloss, const Tensor& dx) const = 0;
};

/// Base of MseLoss and BceWithLogitsLoss: the mean of one function over all elements.
class MeanElementLoss : public Loss {
 protected:
  MeanElementLoss(std::string type_name, ElementLoss function) : Loss(std::move(type_name)), function_(function) {}

 private:
  void check(const Tensor& x, const Tensor& targets) const final;
  void compute(Context& context, const Tensor& x, const Tensor& targets, const Tensor& loss) const final;
  void compute_gradient(Context& context, const Tensor& x, const Tensor& targets, const Tensor& dloss, const Tensor& dx) const final;

  ElementLoss function_;
};

/// Mean of (x - target)^2. Targets: x's shape, f32 or x's dtype.
class MseLoss final : public MeanElementLoss {
 public:
  MseLoss() : MeanElementLoss("mse_loss", ElementLoss::squared_error) {}
};

/// Mean binary cross-entropy of logits x, that is of the probabilities 1 / (1 + e^-x). Targets: x's shape,
/// f32 or x's dtype, from 0 to 1.
class BceWithLogitsLoss final : public MeanElementLoss {
 public:
  BceWithLogitsLoss() : MeanElementLoss("bce_with_logits_loss", ElementLoss::binary_cross_entropy) {}
};

/// Mean of -log softmax(x)[target] over the rows whose target is not ignore_index; NaN if none is. x [..., classes],
/// targets i32: one a row, each in [0, classes) or ignore_index. (HeadLoss, for vocabularies, divides by all rows.)
class CrossEntropyLoss final : public Loss {
 public:
  explicit CrossEntropyLoss(std::int32_t ignore_index = -100) : Loss("cross_entropy_loss"), ignore_index_(ignore_index) {}

 private:
  void check(const Tensor& x, const Tensor& targets) const override;
  void compute(Context& context, const Tensor& x, const Tensor& targets, const Tensor& loss) const override;
  void compute_gradient(Context& context, const Tensor& x, const Tensor& targets, const Tensor& dloss, const Tensor& dx) const override;

  std::int32_t ignore_index_;
};

}  // namespace mica::nn
