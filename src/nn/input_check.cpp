// SPDX-License-Identifier: Apache-2.0
#include "mica/nn/input_check.hpp"

#include <algorithm>
#include <array>

namespace mica::nn {

void expect_inputs(const Module& module, const Tensors& xs, std::size_t count) {
  require<Error>(xs.size() == count, "a '{}' takes {} input tensor(s), got {}", module.type_name(), count, xs.size());
  require<Error>(count == 0 || xs[0] || xs[0].numel() == 0, "the input of a '{}' is absent", module.type_name());
}

void expect_activation(const Module& module, const Tensor& x, std::int64_t cols, DType dtype) {
  require<Error>(x.shape().num_dims() > 0 && x.shape().back() == cols, "the input of a '{}' has shape {}, expected {} as its last dim",
                 module.type_name(), x.shape().to_string(), cols);
  require<Error>(x.dtype() == dtype,
                 "the input of a '{}' is {} and its parameters are {}: give all units that exchange activations the same "
                 "param_dtype, or cast the input",
                 module.type_name(), dtype_name(x.dtype()), dtype_name(dtype));
}

void expect_ids(const Module& module, const Tensor& x) {
  require<Error>(x.dtype() == DType::i32, "a '{}' takes token ids as int32, got {}", module.type_name(), dtype_name(x.dtype()));
}

void expect_in_context(std::int64_t tokens, std::int64_t context) {
  require<ConfigError>(tokens <= context,
                       "a sequence of {} tokens does not fit the model's context of {}: lower train.seq_len or raise "
                       "model.context",
                       tokens, context);
}

Shape with_last_dim(const Shape& shape, std::int64_t last) {
  std::array<std::int64_t, Shape::kMaxDims> dims{};
  std::ranges::copy(shape.dims(), dims.begin());
  dims[shape.num_dims() - 1] = last;
  return Shape(std::span<const std::int64_t>(dims.data(), shape.num_dims()));
}

}  // namespace mica::nn
