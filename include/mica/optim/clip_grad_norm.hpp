#pragma once

#include "mica/fsdp/root.hpp"
#include "mica/tensor/tensor.hpp"

namespace mica::optim {

/// One-element device tensors, valid on the compute stream: the host reads them outside the step only.
struct ClipCoefficient {
  Tensor norm;         // [1] f32, of the whole model's gradient
  Tensor coefficient;  // [1] f32, min(1, max_norm / (norm + 1e-6)); hand it to the optimizer as StepArgs::grad_scale
};

/// The p-norm of the gradient and what to multiply gradients with so that it does not exceed max_norm (docs/parity.md D8).
/// [Note: clipping] This leaves the gradients as they are: the optimizer multiplies while it reads them, which saves a
/// pass over them. clip_grad_norm() multiplies them itself. Sums of p-th powers (the maximum for p = inf) go unit by unit in module order, over pieces only, and are
/// all-reduced over the shard axis: replicas hold the same gradient. Units that are not sharded on a sharded mesh have
/// the same gradient on every rank and are added after the all-reduce, once. So are trainable ignored parameters with a
/// gradient, which whoever holds them has reduced before, or the ranks would clip differently. A rank without gradients
/// joins with 0.
/// Example: full_shard on 2 ranks, |g|^2 summing to 9 on rank 0 and 16 on rank 1, max_norm 1 -> norm 5, coefficient
/// 0.2.
/// @param max_norm  > 0; infinity measures only (coefficient 1).   @param p  > 0, or infinity.
/// @collective over the shard axis.   @stream  enqueued on compute; the host does not block.
/// @throws Error naming the state when the root is in a pass; ConfigError for max_norm or p.
[[nodiscard]] ClipCoefficient clip_coefficient(fsdp::Root& root, double max_norm, double p = 2);

/// Clips the gradients in place, as PyTorch's clip_grad_norm_() does: multiplies all that are in the norm by the
/// coefficient above if it is below 1. @returns the norm before that, [1] f32 on the compute stream. Otherwise as above.
Tensor clip_grad_norm(fsdp::Root& root, double max_norm, double p = 2);
/// By the root module. @throws Error naming a unit that is not the root: its gradient alone is not the model's.
Tensor clip_grad_norm(nn::Module& module, double max_norm, double p = 2);

}  // namespace mica::optim
