// SPDX-License-Identifier: Apache-2.0
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

/// How a model is run.
struct ActivationOptions {
  DType dtype = DType::f32;   ///< of the parameters' data
  bool checkpointed = false;  ///< each block is a checkpointed region
  Recompute recompute = Recompute::none;
};

/// The exact byte counts, as the pool counts them. [Note: activation memory]
/// With M = batch * seq_len rows, e bytes an element, A = M*C*e (one activation of the model's width), the f32
/// statistics s = 2*4*M of one norm and l = 4*M*heads of one attention:
///   a block keeps        S = 16 A + 2 s + l     (x, ln_1's output, qkv 3 A, y, x + attention, ln_2's output, GELU input
///                                               and output 4 A each)
///   Recompute::cheap     S - 6 A                (no norm's or GELU's output)
///   checkpointed         A                      (x)
///   after the blocks     A + s + A + 4          (ln_f's input and statistics, the hidden states, the loss)
/// so saved = layers * S + 2 A + s + 4. The head's backward holds A more than is saved, which is the peak unless
/// - outputs are recomputed: while the last block runs, 6 A are added to the blocks' part: in forward ln_2's output, the
///   GELU's (4 A) and the MLP's; in backward ln_2's output again, the GELU's output or gradient and the gradient of the
///   block's output (with dropout A more), and the loss;
/// - blocks are checkpointed: 6 A besides a block's input in its forward; in its backward, which runs the forward again
///   and then keeps everything, S + A (the output, which is thrown away, and its gradient, less the input, which is
///   already counted; with dropout A more).
/// Holds for models whose norms and GELUs are not units of their own (those always keep their outputs: module.hpp).
[[nodiscard]] ActivationBytes activation_bytes(const Gpt2Config& config, std::int64_t batch, std::int64_t seq_len,
                                               const ActivationOptions& options);

/// MLP: with H = M*hidden*e a block keeps S = 2 A + s + 2 H (x, its statistics, the norm's output, the GELU's input and
/// output), recomputing A + s + H, checkpointed A. Recomputing adds A + H while a block runs forward and A + max(A, H)
/// backward; checkpointed, A + H and S + A; after the blocks as above.
[[nodiscard]] ActivationBytes activation_bytes(const MlpConfig& config, std::int64_t batch, std::int64_t seq_len,
                                               const ActivationOptions& options);

}  // namespace mica::nn
