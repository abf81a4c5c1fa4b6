// SPDX-License-Identifier: Apache-2.0
#include "mica/nn/models/llama_memory.hpp"

#include <algorithm>

namespace mica::nn {

ActivationBytes activation_bytes(const LlamaConfig& config, std::int64_t batch, std::int64_t seq_len, const ActivationOptions& options) {
  constexpr std::int64_t kLossBytes = 4;
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

}  // namespace mica::nn
