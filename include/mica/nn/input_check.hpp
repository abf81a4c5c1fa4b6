// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "mica/nn/module.hpp"

namespace mica::nn {

/// Checks of layers' inputs; errors name the module's type, what was seen and what was expected.

/// @throws Error unless there are `count` inputs and the first is not absent.
void expect_inputs(const Module& module, const Tensors& xs, std::size_t count);
/// @throws Error unless x is [..., cols] in the dtype of the module's parameters.
void expect_activation(const Module& module, const Tensor& x, std::int64_t cols, DType dtype);
/// @throws Error unless x is an i32 tensor (token ids, targets).
void expect_ids(const Module& module, const Tensor& x);
/// @throws ConfigError unless sequences of so many tokens fit the model's context.
void expect_in_context(std::int64_t tokens, std::int64_t context);

/// `shape` with another last dim.
[[nodiscard]] Shape with_last_dim(const Shape& shape, std::int64_t last);

}  // namespace mica::nn
