// SPDX-License-Identifier: Apache-2.0
#include "mica/nn/sequential.hpp"

#include "mica/nn/input_check.hpp"

namespace mica::nn {

Tensors Sequential::do_backward(Context& context, Record& record, Tensors dys) {
  return chain_backward(context, chain_, record, std::move(dys));
}

Tensors Residual::do_forward(Context& context, Tensors xs, Record* record) {
  expect_inputs(*this, xs, 1);
  return list_of(residual_forward(context, chain(), xs[0], record));
}

Tensors Residual::do_backward(Context& context, Record& record, Tensors dys) {
  return list_of(residual_backward(context, chain(), record, std::move(dys)));
}

}  // namespace mica::nn
