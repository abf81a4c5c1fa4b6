// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "mica/tensor/kernels.hpp"

namespace mica::cpu {

/// y[i,:] = tokens[ids[i],:] + positions[i mod T,:]. @throws Error naming an id outside the vocabulary.
void embedding_forward(ConstTensorView ids, ConstTensorView tokens, ConstTensorView positions, TensorView y);

/// Bytes that embedding_backward_tokens needs for `num_ids` ids on `threads` threads.
[[nodiscard]] std::int64_t embedding_backward_scratch_bytes(std::int64_t num_ids, std::int64_t width, int threads);

/// Sums the rows of one id in f32, in the order of the tokens, and writes each row of dtokens once: the same bits on
/// any number of threads, and no rounding in between when dtokens is bf16 or f16.
/// @param range  of dtokens: other rows are neither read nor written
void embedding_backward_tokens(ConstTensorView dy, ConstTensorView ids, TensorView dtokens, const RowRange& range, Write mode,
                               void* scratch);

/// dpositions[t,:] (+)= sum over the batch of dy[b,t,:]. scratch as above.
void embedding_backward_positions(ConstTensorView dy, std::int64_t seq_len, TensorView dpositions, Write mode, void* scratch);

}  // namespace mica::cpu
