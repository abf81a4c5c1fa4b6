// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "mica/nn/module.hpp"

namespace mica::nn {

/// Output head and softmax cross-entropy as ONE operation, so that the whole logits are never in memory.
/// Inputs {hidden [B, T, width], targets i32 [B, T]} -> {loss [1] f32}, the sum of -log softmax(hidden weight^T)[target]
/// divided by ALL B*T rows; rows with target -1 add nothing (dividing by the number of the others would need a count that the
/// host does not have inside a step, and would weight micro-batches unequally). Input {hidden} alone -> {logits [B*T, vocab]
/// f32}, for evaluation and generation: no gradient flows back from them. "weight" [vocab, width] is its own, or another
/// module's if the head is tied.
///
/// With context.loss_in_backward a forward that has a Record returns the loss tensor unfilled and the backward fills
/// it together with the gradients, with one product for the logits instead of two. [Note: loss in backward]
class HeadLoss final : public Module {
 public:
  HeadLoss(std::int64_t vocab_size, std::int64_t width, double weight_std = 0.02);
  /// Tied: uses `weight` [vocab, width] of a module that comes earlier in the model.
  explicit HeadLoss(Parameter& weight);

  [[nodiscard]] bool writes_grads_in_turns() const override { return true; }

  /// record.saved
  static constexpr std::size_t kHidden = 0;   // [B, T, width]
  static constexpr std::size_t kTargets = 1;  // [B, T] i32
  static constexpr std::size_t kLoss = 2;     // [1] f32, present when backward fills it

 private:
  Tensors do_forward(Context& context, Tensors xs, Record* record) override;
  Tensors do_backward(Context& context, Record& record, Tensors dys) override;
  Tensor* do_saved_input(Record& record) override;
  [[nodiscard]] Tensor logits(Context& context, const Tensor& hidden) const;

  Parameter& weight_;
};

}  // namespace mica::nn
