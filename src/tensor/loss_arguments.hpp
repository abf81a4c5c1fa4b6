// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "arguments.hpp"

// What every device requires of the arguments of losses. @throws Error naming the argument
namespace mica::arguments {

/// The returned number is elements of x.
std::int64_t check_element_loss(ConstTensorView x, ConstTensorView targets, ConstTensorView loss);
std::int64_t check_element_loss_backward(ConstTensorView x, ConstTensorView targets, ConstTensorView dloss, ConstTensorView dx);

struct ClassDims {
  std::int64_t rows, classes;
};
ClassDims check_cross_entropy(ConstTensorView logits, ConstTensorView targets, ConstTensorView loss);
ClassDims check_cross_entropy_backward(ConstTensorView logits, ConstTensorView targets, ConstTensorView dloss, ConstTensorView dlogits);

}  // namespace mica::arguments
