// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "mica/nn/module.hpp"

namespace mica::nn {

/// Runs several modules on the same input: the products that make queries, keys and values, or an MLP's gate and up projection.
/// One output per module. `record` is the fan's alone: its children are the modules in order. The input is kept once, where a
/// chain can drop and restore it (Module::saved_input); the gradients of the input are added up in one buffer.
[[nodiscard]] Tensors fan_out_forward(Context& context, std::span<Module* const> fan, const Tensor& x, Record* record);
/// @param dys  one per module, absent where none is wanted.
/// @returns the gradient of x; absent if none is needed.
[[nodiscard]] Tensor fan_out_backward(Context& context, std::span<Module* const> fan, Record& record, Tensors dys);
/// Where the fan keeps its input; null if none of its modules needs it.
[[nodiscard]] Tensor* fan_out_saved_input(Record& record);

}  // namespace mica::nn
