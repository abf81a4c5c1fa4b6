#pragma once

#include <span>

#include "mica/nn/module.hpp"

namespace mica::nn {

/// Runs modules beside one another, each on the same input: the products that make queries, keys and values, or the
/// gate of an MLP and what it gates. One output a module. `record` belongs to the fan alone: its children are the
/// modules in order. The input is kept once, where a chain can drop it and put it back (Module::saved_input); the
/// gradients of the input are added up in one buffer.
[[nodiscard]] Tensors fan_out_forward(Context& context, std::span<Module* const> fan, const Tensor& x, Record* record);
/// @param dys  one a module, absent where none is wanted.
/// @returns the gradient of x; absent when it needs none.
[[nodiscard]] Tensor fan_out_backward(Context& context, std::span<Module* const> fan, Record& record, Tensors dys);
/// Where the fan keeps its input; null when none of its modules needs it.
[[nodiscard]] Tensor* fan_out_saved_input(Record& record);

}  // namespace mica::nn
