// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "mica/fsdp/root.hpp"
#include "mica/tensor/tensor.hpp"

namespace mica::optim {

/// One-element device tensors, valid on the compute stream; the host reads them only outside a step.
struct ClipCoefficient {
  Tensor norm;         // [1] f32, of the whole model's gradient
  Tensor coefficient;  // [1] f32, min(1, max_norm / (norm + 1e-6)); pass it to the optimizer as StepArgs::grad_scale
};

/// The p-norm of the gradient, and the factor for gradients that keeps it at most max_norm (docs/parity.md D8).
/// [Note: clipping] The gradients are not changed: the optimizer multiplies while it reads them, which saves a pass over them.
/// clip_grad_norm() multiplies them itself. Sums of p-th powers (the maximum for p = inf) are taken unit by unit in module
/// order, over pieces only, and all-reduced over the shard axis; replicas hold the same gradient. Unsharded units on a sharded
/// mesh have the same gradient on every rank and are added once, after the all-reduce. So are the gradients of trainable
/// ignored parameters, which their owner must have reduced before, or ranks would clip differently. A rank without gradients
/// contributes 0.
/// Example: full_shard on 2 ranks, |g|^2 summing to 9 on rank 0 and 16 on rank 1, max_norm 1 -> norm 5, coefficient
/// 0.2.
/// @param max_norm  > 0; infinity: the norm only (coefficient 1).   @param p  > 0, or infinity.
/// @collective over the shard axis.   @stream  enqueued on compute; the host does not block.
/// @throws Error naming the state if the root is in a pass; ConfigError for max_norm or p.
[[nodiscard]] ClipCoefficient clip_coefficient(fsdp::Root& root, double max_norm, double p = 2);

/// Clips the gradients in place, as PyTorch's clip_grad_norm_() does: multiplies all gradients in the norm by the coefficient
/// if it is below 1. @returns the norm before clipping, [1] f32 on the compute stream. Otherwise as above.
Tensor clip_grad_norm(fsdp::Root& root, double max_norm, double p = 2);
/// The same, given the root module. @throws Error naming a unit that is not the root, whose gradient is not the whole model's.
Tensor clip_grad_norm(nn::Module& module, double max_norm, double p = 2);

}  // namespace mica::optim
