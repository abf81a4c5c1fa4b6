// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "mica/nn/module.hpp"

namespace mica::nn {

/// [Note: fused neighbours] Some layers do a neighbour's work in their own kernel. These, and no others:
///   forward   Linear, then Gelu                                linear_gelu
///   backward  Linear, then the Gelu before it                  linear_gelu_backward_input
///   forward   Embedding, then PositionEmbedding                embedding
///   forward   a residual's sum, then a LayerNorm or RmsNorm    add_layer_norm, add_rms_norm
/// Code that runs modules (chain.hpp, a model) tries these first. If no value is returned, nothing was done and each module runs
/// by itself. Records are filled and consumed as if each had run by itself, so that a forward and its backward need not fuse the
/// same modules. A module that runs alone (Module::runs_alone) is never fused.

/// The forward of `a` on xs, then of `b` on a's outputs and the other inputs that b takes.
[[nodiscard]] std::optional<Tensors> fused_forward(Context& context, Module& a, Module& b, const Tensors& xs, Record* of_a, Record* of_b);
/// The backward of `b`, which ran after `a`, then a's. @param dys  gradients of b's outputs. @returns gradients of a's inputs.
[[nodiscard]] std::optional<Tensors> fused_backward(Context& context, Module& a, Module& b, Record& of_a, Record& of_b, const Tensors& dys);
/// sum = x + branch, and the forward of `norm` on sum. sum may be x or branch.
[[nodiscard]] std::optional<Tensors> norm_of_sum(Context& context, Module& norm, const Tensor& x, const Tensor& branch, const Tensor& sum,
                                                 Record* record);

}  // namespace mica::nn
