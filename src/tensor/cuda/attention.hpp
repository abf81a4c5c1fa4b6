// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "mica/device/pool.hpp"
#include "mica/tensor/kernels.hpp"

#include "launch.hpp"

// Attention by Mica's own kernels, for any head size and dtype. Arguments as in Kernels::attention, already checked.
namespace mica::cuda {

void own_attention(Stream& s, const AttentionShape& shape, const ConstQkv& in, TensorView y, TensorView lse);
void own_attention_backward(Stream& s, Pool& pool, const AttentionShape& shape, ConstTensorView dy, const ConstQkv& in, ConstTensorView y,
                            ConstTensorView lse, const Qkv& d_in);

}  // namespace mica::cuda
