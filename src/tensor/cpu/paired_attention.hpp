// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "mica/tensor/kernels.hpp"

namespace mica::cpu {

// Attention of bf16 tensors on pairs of numbers ([Note: pairs of bf16]). The steps are those of [Note: attention], with f32 sums.
// Scores and the sums of softmax are f32; P and dS are rounded to bf16 before they are multiplied. Backward has a row of scores for
// each key, so that P and dS lie as dV = P^T dO and dK = dS^T Q need them; only dS is transposed, for dQ = dS K.

/// Whether this processor computes attention of that dtype so.
[[nodiscard]] bool is_paired(DType dtype);

[[nodiscard]] std::int64_t paired_attention_scratch_bytes(const AttentionShape& shape);
void paired_attention_forward(const AttentionShape& shape, const ConstQkv& in, TensorView y, TensorView lse, void* scratch);

[[nodiscard]] std::int64_t paired_attention_backward_scratch_bytes(const AttentionShape& shape);
void paired_attention_backward(const AttentionShape& shape, ConstTensorView dy, const ConstQkv& in, ConstTensorView y, ConstTensorView lse,
                               const Qkv& d_in, void* scratch);

}  // namespace mica::cpu
