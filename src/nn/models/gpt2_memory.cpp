#include "mica/nn/models/gpt2_memory.hpp"

#include <algorithm>

namespace mica::nn {
namespace {
constexpr std::int64_t kLossBytes = 4;
constexpr std::int64_t kStatisticsBytes = 2 * 4;  // mean and rstd of a row
}  // namespace

ActivationBytes activation_bytes(const Gpt2Config& config, std::int64_t batch, std::int64_t seq_len, DType dtype,
                                 bool checkpointed) {
  const std::int64_t rows = batch * seq_len;
  const std::int64_t a = rows * config.width * dtype_bytes(dtype);
  const std::int64_t s = rows * kStatisticsBytes;
  const std::int64_t l = 4 * rows * config.heads;
  const std::int64_t block = 10 * a + 2 * s + l;
  const std::int64_t kept = config.layers * (checkpointed ? a : block);

  ActivationBytes bytes;
  bytes.saved = kept + a + s + a + kLossBytes;
  bytes.forward_peak = std::max(bytes.saved, 2 * a);        // wte's and wpe's outputs
  bytes.backward_peak = kept + a + s + 2 * a + kLossBytes;  // the hidden states and their gradient
  if (config.layers == 0) return bytes;
  // A forward without a Record holds x + attention, ln_2's output or c_proj's, and the GELU's output beside the block's
  // input.
  bytes.forward_peak = std::max(bytes.forward_peak, kept + 6 * a);
  // Checkpointed, the forward that runs again (as forward, beside the gradient of the block's output) is the peak.
  const std::int64_t in_block = checkpointed ? block - a + 7 * a : (config.dropout > 0 ? 7 * a : 6 * a);
  bytes.backward_peak = std::max(bytes.backward_peak, kept + in_block + kLossBytes);
  return bytes;
}

ActivationBytes activation_bytes(const MlpConfig& config, std::int64_t batch, std::int64_t seq_len, DType dtype,
                                 bool checkpointed) {
  const std::int64_t rows = batch * seq_len;
  const std::int64_t a = rows * config.width * dtype_bytes(dtype);
  const std::int64_t h = rows * config.hidden * dtype_bytes(dtype);
  const std::int64_t s = rows * kStatisticsBytes;
  const std::int64_t kept = config.layers * (checkpointed ? a : a + s + h);

  ActivationBytes bytes;
  bytes.saved = kept + a + s + a + kLossBytes;
  bytes.forward_peak = bytes.saved;
  bytes.backward_peak = kept + a + s + 2 * a + kLossBytes;
  if (config.layers == 0) return bytes;
  // The GELU's output beside the norm's output or the block's.
  bytes.forward_peak = std::max(bytes.forward_peak, kept + h + a);
  // dy, then the GELU's output or gradient, or the norm's output or gradient in place of the GELU's input. The forward
  // that runs again holds more than the backward behind it.
  const std::int64_t in_block = checkpointed ? a + (s + h) + h + a : a + std::max(a, h);
  bytes.backward_peak = std::max(bytes.backward_peak, kept + in_block + kLossBytes);
  return bytes;
}

}  // namespace mica::nn
