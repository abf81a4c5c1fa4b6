// SPDX-License-Identifier: Apache-2.0
#include "mica/nn/models/gpt2_memory.hpp"

#include <algorithm>

namespace mica::nn {
namespace {
constexpr std::int64_t kLossBytes = 4;
constexpr std::int64_t kStatisticsBytes = 2 * 4;  // mean and rstd of a row
}  // namespace

ActivationBytes activation_bytes(const Gpt2Config& config, std::int64_t batch, std::int64_t seq_len, const ActivationOptions& options) {
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

ActivationBytes activation_bytes(const MlpConfig& config, std::int64_t batch, std::int64_t seq_len, const ActivationOptions& options) {
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

}  // namespace mica::nn
