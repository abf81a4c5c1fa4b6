// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "mica/nn/context.hpp"

namespace mica::nn {

/// Where a layer's backward writes the gradient of input 0. dx is absent when none is wanted.
struct InputGradient {
  Tensor dx;
  Write mode = Write::overwrite;
};

/// Another path's gradient where dx can be added to it (GradientSum), which then counts as used; else memory for one,
/// `shape` in dy's dtype.
[[nodiscard]] InputGradient input_gradient(Context& context, Record& record, const Tensor& dy, const Shape& shape);

}  // namespace mica::nn
