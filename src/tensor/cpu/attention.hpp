// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "mica/tensor/kernels.hpp"

namespace mica::cpu {

/// Causal attention in f32 whatever the dtype; bf16 tensors are multiplied as they are where the processor can (paired_attention.hpp).
/// A thread works on one head of a sequence at a time, or on some of its queries (attention_shares.hpp). [Note: attention]
/// Queries are taken kPanel at a time. Keys and values are first packed: K^T (and V^T in backward) in panels
/// [D][kPanel], so that scores are products of rows with a panel that stays in the first-level cache; the panels
/// above the diagonal are skipped and the diagonal one is processed in steps of 16 rows. Forward holds the scores of one
/// tile of queries, [kPanel, T]; backward recomputes P from lse, panel by panel, [kPanel, kPanel].
/// Heads that share a key and value head (a group) follow one another: keys and values packed for the first serve all, and
/// backward sums their dK and dV before it stores them. Where threads share a group, each has sums of its own, which are added in
/// the threads' order: y and dQ have the same bits with any number of threads, dK and dV with the same number.
[[nodiscard]] std::int64_t attention_scratch_bytes(const AttentionShape& shape, DType dtype);
void attention_forward(const AttentionShape& shape, const ConstQkv& in, TensorView y, TensorView lse, void* scratch);

[[nodiscard]] std::int64_t attention_backward_scratch_bytes(const AttentionShape& shape, DType dtype);
void attention_backward(const AttentionShape& shape, ConstTensorView dy, const ConstQkv& in, ConstTensorView y, ConstTensorView lse,
                        const Qkv& d_in, void* scratch);

}  // namespace mica::cpu
