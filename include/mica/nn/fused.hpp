#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "mica/nn/module.hpp"

namespace mica::nn {

/// [Note: fused neighbours] Some layers do a neighbour's work in a kernel of their own. These, and no others:
///   forward   Linear, then Gelu                                linear_gelu
///   backward  Linear, then the Gelu before it                  linear_gelu_backward_input
///   forward   Embedding, then PositionEmbedding                embedding
///   forward   a residual's sum, then a LayerNorm or RmsNorm    add_layer_norm, add_rms_norm
///   forward   the Linear that ends a residual's branch, then   linear_add, where the device gains from it
///             the residual's sum                               (Kernels::adds_in_products)
/// Whoever runs modules (chain.hpp, a model) asks here. No value: nothing was done, each is to run by itself. Records
/// are filled and used up as if each had, so that a forward and its backward need not fuse the same ones. A module that
/// runs alone (Module::runs_alone) is never fused.

/// The forward of `a` on xs, and of `b` on what `a` returns and what b takes beside it.
[[nodiscard]] std::optional<Tensors> fused_forward(Context& context, Module& a, Module& b, const Tensors& xs,
                                                   Record* of_a, Record* of_b);
/// The backward of `b`, which stood behind `a`, and then a's: the gradients of a's inputs. dys: of b's outputs.
[[nodiscard]] std::optional<Tensors> fused_backward(Context& context, Module& a, Module& b, Record& of_a, Record& of_b,
                                                    const Tensors& dys);
/// sum = x + branch, and the forward of `norm` on it. sum may be x or branch.
[[nodiscard]] std::optional<Tensors> norm_of_sum(Context& context, Module& norm, const Tensor& x, const Tensor& branch,
                                                 const Tensor& sum, Record* record);

/// Which module of `chain` can add x to what the chain returns, by forward_onto(); chain.size(): none.
[[nodiscard]] std::size_t adding_module(const Context& context, std::span<Module* const> chain, const Tensor& x);
/// The forward of such a module on xs, and x + its one output. Only for a module that adding_module(context, chain, x) has
/// named: whatever stands behind it in the chain then returns its input.
[[nodiscard]] Tensors forward_onto(Context& context, Module& module, const Tensor& x, Tensors xs, Record* record);

}  // namespace mica::nn
