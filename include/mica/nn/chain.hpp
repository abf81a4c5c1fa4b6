// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <initializer_list>
#include <span>

#include "mica/nn/module.hpp"

namespace mica::nn {

/// Runs modules one after another, each on the outputs of the one before: the engine of Sequential, Residual and the models.
/// Under Recompute::cheap, outputs that a layer can recompute are not kept ([Note: recomputed outputs] in module.hpp): with
/// LayerNorm -> Linear -> Gelu -> Linear only the norm's input and statistics and the GELU's input are kept. `record` is the
/// chain's alone: its children are the chain's modules in order. Neighbours that can share a kernel do so ([Note: fused
/// neighbours] in fused.hpp).
[[nodiscard]] Tensors chain_forward(Context& context, std::span<Module* const> chain, Tensors xs, Record* record);
[[nodiscard]] Tensors chain_backward(Context& context, std::span<Module* const> chain, Record& record, Tensors dys);
/// Where the chain keeps its first input (Module::saved_input of its first module).
[[nodiscard]] Tensor* chain_saved_input(std::span<Module* const> chain, Record& record);

/// y = x + chain(x). `record` is this call's alone. The gradient around the chain and the one through it are summed in one
/// buffer, dy's own if nobody else holds it.
[[nodiscard]] Tensor residual_forward(Context& context, std::span<Module* const> chain, const Tensor& x, Record* record);
/// The same for several chains one after another: x = x + chain(x) for each. Their Records are children of `record`, in order.
/// A sum is computed by the product that ends its chain, or by the norm that begins the next one, if that is cheaper ([Note:
/// fused neighbours]).
[[nodiscard]] Tensor residuals_forward(Context& context, std::initializer_list<std::span<Module* const>> chains, Tensor x, Record* record);
[[nodiscard]] Tensor residual_backward(Context& context, std::span<Module* const> chain, Record& record, Tensors dys);

}  // namespace mica::nn
