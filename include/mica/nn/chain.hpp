#pragma once

#include <initializer_list>
#include <span>

#include "mica/nn/module.hpp"

namespace mica::nn {

/// Runs modules one behind the other, each on the outputs of the one before. What Sequential, Residual and the models
/// are made of. Under Recompute::cheap outputs that a layer can make again are not kept ([Note: recomputed outputs] in
/// module.hpp): with LayerNorm -> Linear -> Gelu -> Linear only the input of the norm, its statistics and the input of
/// the GELU stay.
/// `record` belongs to the chain alone: its children are the chain's modules in order. Neighbours that can share a
/// kernel do ([Note: fused neighbours] in fused.hpp).
[[nodiscard]] Tensors chain_forward(Context& context, std::span<Module* const> chain, Tensors xs, Record* record);
[[nodiscard]] Tensors chain_backward(Context& context, std::span<Module* const> chain, Record& record, Tensors dys);
/// Where the chain keeps its first input (Module::saved_input of its first module).
[[nodiscard]] Tensor* chain_saved_input(std::span<Module* const> chain, Record& record);

/// y = x + chain(x). `record` belongs to this call alone. The gradient that flows past the chain and the one through
/// it are summed in one buffer, in dy's own where nobody else holds it.
[[nodiscard]] Tensor residual_forward(Context& context, std::span<Module* const> chain, const Tensor& x,
                                      Record* record);
/// The same for several chains, one behind the other: x = x + chain(x) for each. Its Records are children of `record`,
/// in order. A sum is made by the product that ends its chain, or by the norm that the next chain begins with, where
/// that takes less ([Note: fused neighbours]).
[[nodiscard]] Tensor residuals_forward(Context& context, std::initializer_list<std::span<Module* const>> chains,
                                       Tensor x, Record* record);
[[nodiscard]] Tensor residual_backward(Context& context, std::span<Module* const> chain, Record& record, Tensors dys);

}  // namespace mica::nn
