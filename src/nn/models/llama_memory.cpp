#include "mica/nn/models/llama_memory.hpp"

#include <algorithm>

namespace mica::nn {

ActivationBytes activation_bytes(const LlamaConfig& config, std::int64_t batch, std::int64_t seq_len, DType dtype,
                                 bool checkpointed) {
  constexpr std::int64_t kLossBytes = 4;
  const std::int64_t rows = batch * seq_len, row_bytes = rows * dtype_bytes(dtype);
  const std::int64_t a = row_bytes * config.width;
  const std::int64_t q = row_bytes * config.heads * config.head_size();
  const std::int64_t k = row_bytes * config.num_kv_heads() * config.head_size();
  const std::int64_t f = row_bytes * config.hidden;
  const std::int64_t r = 4 * rows, l = 4 * rows * config.heads;
  const std::int64_t attention = a + r + 2 * q + 2 * k + l;  // x, its statistic, q, k, v, y
  const std::int64_t block = attention + a + r + 2 * f;      // x + attention, its statistic, gate, up
  const std::int64_t kept = config.layers * (checkpointed ? a : block);

  ActivationBytes bytes;
  bytes.saved = kept + a + r + a + kLossBytes;
  bytes.forward_peak = bytes.saved;
  bytes.backward_peak = kept + a + r + 2 * a + kLossBytes;  // the hidden states and their gradient
  if (config.layers == 0) return bytes;
  const std::int64_t forward = block + 2 * a + f;  // of one block, its input included
  const std::int64_t without_record = std::max({a + std::max(a + 2 * f, 3 * f), a + q + 2 * k, 2 * q + 2 * k});
  bytes.forward_peak = std::max(bytes.forward_peak, kept + (checkpointed ? without_record : forward - block));
  std::int64_t backward = std::max(block + 2 * a + std::max(f, a), attention + 2 * a + 2 * q + 2 * k);
  if (checkpointed) backward = std::max(backward, a + forward);
  bytes.backward_peak = std::max(bytes.backward_peak, kept + backward - (checkpointed ? a : block) + kLossBytes);
  return bytes;
}

}  // namespace mica::nn
