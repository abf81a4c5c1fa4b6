#pragma once

#include "mica/nn/models/gpt2.hpp"
#include "mica/nn/models/mlp.hpp"

namespace mica::nn {

/// Bytes of role `activation`, beyond the caller's ids, targets and dloss, of one forward with a Record and its
/// backward.
struct ActivationBytes {
  std::int64_t saved = 0;          ///< between forward and backward, the loss included
  std::int64_t forward_peak = 0;   ///< highest during the forward
  std::int64_t backward_peak = 0;  ///< highest during the backward
  [[nodiscard]] std::int64_t peak() const { return forward_peak > backward_peak ? forward_peak : backward_peak; }
};

/// The exact figures, as the pool counts them. [Note: activation memory]
/// With M = batch * seq_len rows, e bytes an element, A = M*C*e (one activation of the model's width), the f32
/// statistics s = 2*4*M of one norm and l = 4*M*heads of one attention:
///   a block keeps        S = 10 A + 2 s + l     (x, qkv 3 A, y, x + attention, GELU input 4 A; no norm or GELU output)
///   checkpointed         A                      (x)
///   behind the blocks    A + s + A + 4          (ln_f's input and statistics, the hidden states, the loss)
/// so saved = layers * S + 2 A + s + 4. On top of the blocks' part come, while the last block runs, 6 A: forward ln_2's
/// output, the GELU's (4 A) and the MLP's; backward ln_2's output again, the GELU's output or gradient and the gradient
/// of the block's output (with dropout A more), and the loss. A checkpointed block has 9 A
/// in its forward and S - A + 7 A in its backward, which runs the forward again. The head's backward holds A more than
/// is saved. Holds for models whose norms and GELUs are not units of their own (those keep their outputs: module.hpp).
[[nodiscard]] ActivationBytes activation_bytes(const Gpt2Config& config, std::int64_t batch, std::int64_t seq_len,
                                               DType dtype, bool checkpointed);

/// MLP: with H = M*hidden*e a block keeps A + s + H (x, its statistics, the GELU's input), checkpointed A; on top come,
/// while a block runs, A + H forward and A + max(A, H) backward; behind the blocks as above.
[[nodiscard]] ActivationBytes activation_bytes(const MlpConfig& config, std::int64_t batch, std::int64_t seq_len,
                                               DType dtype, bool checkpointed);

}  // namespace mica::nn
