// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the activations of each model must take, as closed formulas. Byte counts that are literals in a test hold them in turn.

#include <algorithm>

#include "mica/nn/models/gpt2.hpp"
#include "mica/nn/models/llama.hpp"
#include "mica/nn/models/mlp.hpp"

namespace mica::nn::testing {

inline constexpr std::int64_t kLossBytes = 4;
inline constexpr std::int64_t kStatisticsBytes = 2 * 4;  // mean and rstd of a row

/// Bytes of role `activation`, beyond the caller's ids, targets and dloss, of one forward with a Record and its
/// backward.
struct ActivationBytes {
  std::int64_t saved = 0;          ///< between forward and backward, the loss included
  std::int64_t forward_peak = 0;   ///< highest during the forward
  std::int64_t backward_peak = 0;  ///< highest during the backward
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
[[nodiscard]] inline ActivationBytes activation_bytes(const Gpt2Config& config, std::int64_t batch, std::int64_t seq_len,
                                                      const ActivationOptions& options) {
  const std::int64_t rows = batch * seq_len;
  const std::int64_t a = rows * config.width * dtype_bytes(options.dtype);
  const std::int64_t s = rows * kStatisticsBytes;
  const std::int64_t l = 4 * rows * config.heads;
  const bool recomputes = options.recompute == Recompute::cheap;
  const std::int64_t block = 16 * a + 2 * s + l;
  const std::int64_t kept = config.layers * (options.checkpointed ? a : block - (recomputes ? 6 * a : 0));

  ActivationBytes bytes;
  bytes.saved = kept + a + s + a + kLossBytes;
  bytes.forward_peak = bytes.saved;
  bytes.backward_peak = kept + a + s + 2 * a + kLossBytes;  // the hidden states and their gradient
  if (config.layers == 0) return bytes;
  // Besides the block's input, a forward without a Record holds x + attention, ln_2's output or c_proj's, and the GELU's
  // output; one that drops outputs holds as much.
  if (options.checkpointed || recomputes) bytes.forward_peak = std::max(bytes.forward_peak, kept + 6 * a);
  const std::int64_t of_dropout = config.dropout > 0 ? a : 0;  // its output besides its input, or their gradients
  if (options.checkpointed) {
    bytes.backward_peak = std::max(bytes.backward_peak, kept - a + block + 2 * a + of_dropout + kLossBytes);
  } else if (recomputes) {
    bytes.backward_peak = std::max(bytes.backward_peak, kept + 6 * a + of_dropout + kLossBytes);
  }
  return bytes;
}

/// MLP: with H = M*hidden*e a block keeps S = 2 A + s + 2 H (x, its statistics, the norm's output, the GELU's input and
/// output), recomputing A + s + H, checkpointed A. Recomputing adds A + H while a block runs forward and A + max(A, H)
/// backward; checkpointed, A + H and S + A; after the blocks as above.
[[nodiscard]] inline ActivationBytes activation_bytes(const MlpConfig& config, std::int64_t batch, std::int64_t seq_len,
                                                      const ActivationOptions& options) {
  const std::int64_t rows = batch * seq_len;
  const std::int64_t a = rows * config.width * dtype_bytes(options.dtype);
  const std::int64_t h = rows * config.intermediate_size * dtype_bytes(options.dtype);
  const std::int64_t s = rows * kStatisticsBytes;
  const bool recomputes = options.recompute == Recompute::cheap;
  const std::int64_t block = 2 * a + s + 2 * h;
  const std::int64_t kept = config.layers * (options.checkpointed ? a : block - (recomputes ? a + h : 0));

  ActivationBytes bytes;
  bytes.saved = kept + a + s + a + kLossBytes;
  bytes.forward_peak = bytes.saved;
  bytes.backward_peak = kept + a + s + 2 * a + kLossBytes;
  if (config.layers == 0) return bytes;
  // The GELU's output, and the norm's output or the block's.
  if (options.checkpointed || recomputes) bytes.forward_peak = std::max(bytes.forward_peak, kept + h + a);
  if (options.checkpointed) {
    // The recomputed forward holds more than the backward that follows.
    bytes.backward_peak = std::max(bytes.backward_peak, kept - a + block + 2 * a + kLossBytes);
  } else if (recomputes) {
    // dy, then the GELU's output or gradient, or the norm's output or gradient in place of the GELU's input.
    bytes.backward_peak = std::max(bytes.backward_peak, kept + a + std::max(a, h) + kLossBytes);
  }
  return bytes;
}

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
[[nodiscard]] inline ActivationBytes activation_bytes(const LlamaConfig& config, std::int64_t batch, std::int64_t seq_len,
                                                      const ActivationOptions& options) {
  const std::int64_t rows = batch * seq_len, row_bytes = rows * dtype_bytes(options.dtype);
  const std::int64_t a = row_bytes * config.width;
  const std::int64_t q = row_bytes * config.heads * config.head_size();
  const std::int64_t k = row_bytes * config.num_kv_heads() * config.head_size();
  const std::int64_t f = row_bytes * config.intermediate_size;
  const std::int64_t r = 4 * rows, l = 4 * rows * config.heads;
  const bool recomputes = options.recompute == Recompute::cheap;
  const std::int64_t attention = a + r + a + 2 * q + 2 * k + l;  // x, its statistic, the norm's output, q, k, v, y
  const std::int64_t block = attention + a + r + a + 3 * f;      // the same of x + attention; gate, up, their SwiGLU
  const std::int64_t kept_of_block = options.checkpointed ? a : block - (recomputes ? 2 * a + f : 0);
  const std::int64_t kept = config.layers * kept_of_block;

  ActivationBytes bytes;
  bytes.saved = kept + a + r + a + kLossBytes;
  bytes.forward_peak = bytes.saved;
  bytes.backward_peak = kept + a + r + 2 * a + kLossBytes;  // the hidden states and their gradient
  if (config.layers == 0) return bytes;
  const std::int64_t without_record = std::max({a + std::max(a + 2 * f, 3 * f), a + q + 2 * k, 2 * q + 2 * k});
  if (options.checkpointed) bytes.forward_peak = std::max(bytes.forward_peak, kept + without_record);
  if (recomputes && !options.checkpointed) bytes.forward_peak = std::max(bytes.forward_peak, kept + 2 * a + f);
  std::int64_t backward = attention + a + 2 * q + 2 * k;  // beside the gradient of the block's output
  if (options.checkpointed) {
    backward = std::max(backward, block + 2 * a);  // the forward that runs again
  } else if (recomputes) {
    backward = std::max(backward, kept_of_block + 2 * a + std::max(f, a));
  }
  bytes.backward_peak = std::max(bytes.backward_peak, kept - kept_of_block + backward + kLossBytes);
  return bytes;
}

}  // namespace mica::nn::testing
