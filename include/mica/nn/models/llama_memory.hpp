// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "mica/nn/models/gpt2_memory.hpp"
#include "mica/nn/models/llama.hpp"

namespace mica::nn {

/// The exact figures of a Llama, as the pool counts them; see [Note: activation memory]. With M = batch * seq_len rows,
/// e bytes an element, A = M*C*e, Q = M*heads*head_dim*e, K = M*kv_heads*head_dim*e, F = M*hidden*e, the statistic r =
/// 4*M of one norm and l = 4*M*heads of one attention:
///   a block keeps        S = 4 A + 2 Q + 2 K + 3 F + 2 r + l     (x, a norm's output, q, k, v, y, x + attention, a
///                                                                norm's output, gate, up, the SwiGLU's output)
///   Recompute::cheap     S - 2 A - F                             (no norm's or SwiGLU's output)
///   checkpointed         A                                       (x)
///   after the blocks     A + r + A + 4                           (norm's input and statistic, the hidden states, the
///                                                                loss)
/// so saved = layers * S + 2 A + r + 4. The head's backward holds A more than is saved. Recomputing adds to the
/// blocks' part, while the last block runs: in forward 2 A + F (the outputs of the second norm, the MLP and its SwiGLU); in
/// backward 2 A + max(F, A) and the loss (the gradient of the block's output, the norm's output
/// again, and the SwiGLU's output or gradient, or the gradient of the norm's output). With the MLP's tensors gone the
/// attention's backward has the gradient of the block's output, the norm's output, kept or made again, and 2 Q + 2 K. A
/// checkpointed block's forward holds A + max(A + 2 F, 3 F), or A + Q + 2 K or 2 Q + 2 K in the attention; its backward
/// runs the forward again, which then keeps S and makes the output, beside the gradient of that.
[[nodiscard]] ActivationBytes activation_bytes(const LlamaConfig& config, std::int64_t batch, std::int64_t seq_len,
                                               const ActivationOptions& options);

}  // namespace mica::nn
