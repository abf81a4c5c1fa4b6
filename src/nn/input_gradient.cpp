// SPDX-License-Identifier: Apache-2.0
#include "input_gradient.hpp"

namespace mica::nn {

InputGradient input_gradient(Context& context, Record& record, const Tensor& dy, const Shape& shape) {
  if (!record.needs_dx(0)) return {};
  GradientSum* sum = record.dx_sum;
  if (!sum || !sum->accepts(dy)) return {context.make(shape, dy.dtype()), Write::overwrite};
  sum->used = true;
  return {sum->sum, Write::accumulate};
}

}  // namespace mica::nn
