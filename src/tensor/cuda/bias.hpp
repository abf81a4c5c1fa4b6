// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "mica/device/pool.hpp"
#include "mica/tensor/kernels.hpp"

#include "launch.hpp"

namespace mica::cuda {

/// dbias[n] (+)= column sums of dy [rows, n], in f32 and always in the same order. rows > 0; n > 0.
void bias_gradient(Stream& s, Pool& pool, ConstTensorView dy, std::int64_t rows, TensorView dbias, Write mode);

/// y[rows, n] = x + bias; x [rows, n] and bias [n] f32, y of any floating-point dtype.
void add_bias(Stream& s, ConstTensorView x, ConstTensorView bias, TensorView y);

}  // namespace mica::cuda
