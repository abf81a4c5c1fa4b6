// SPDX-License-Identifier: Apache-2.0
#include "rotary.hpp"

#include <algorithm>
#include <cmath>

#include "loops.hpp"
#include "parallel.hpp"

namespace mica::cpu {

namespace {

/// Blocks of all sequences, and how many of them a thread should get at least.
struct Blocks {
  std::int64_t per_sequence, total, grain;
  explicit Blocks(const Shape& x)
      : per_sequence(divide_up(x[1], kRotaryBlock)), total(x[0] * per_sequence), grain(row_grain(kRotaryBlock * x[2])) {}
};

/// cos and sin of positions [first, first + count) times each frequency, [count, inv_freq.size()] each.
void fill_table(const std::vector<double>& inv_freq, Turn turn, std::int64_t first, std::int64_t count, float* cos, float* sin) {
  const std::size_t half = inv_freq.size();
  const double sign = turn == Turn::forward ? 1 : -1;
  for (std::size_t i = 0; i < half; ++i) {
    const double angle = static_cast<double>(first) * inv_freq[i];
    const double step_cos = std::cos(inv_freq[i]), step_sin = sign * std::sin(inv_freq[i]);
    double c = std::cos(angle), s = sign * std::sin(angle);
    for (std::size_t at = i; at < static_cast<std::size_t>(count) * half; at += half) {
      cos[at] = static_cast<float>(c);
      sin[at] = static_cast<float>(s);
      const double next = c * step_cos - s * step_sin;
      s = s * step_cos + c * step_sin;
      c = next;
    }
  }
}

}  // namespace

std::int64_t rotary_scratch_bytes(std::int64_t head_dim, int threads) {
  return threads * kRotaryBlock * head_dim * static_cast<std::int64_t>(sizeof(float));
}

int rotary_threads(const ConstTensorView& x) {
  const Blocks blocks(x.shape);
  return threads_for(blocks.total, blocks.grain);
}

void rotary(const ConstTensorView& x, const std::vector<double>& inv_freq, Turn turn, const TensorView& y, void* scratch) {
  const Blocks blocks(x.shape);
  const std::int64_t seq_len = x.shape[1], width = x.shape[2], element = dtype_bytes(x.dtype);
  const auto half = static_cast<std::int64_t>(inv_freq.size());
  parallel_ranges_by_thread(blocks.total, blocks.grain, [&](std::int64_t begin, std::int64_t end, int thread) {
    float* cos = static_cast<float*>(scratch) + thread * kRotaryBlock * 2 * half;
    float* sin = cos + kRotaryBlock * half;
    std::int64_t filled = -1;
    for (std::int64_t block = begin; block < end; ++block) {
      const std::int64_t first = block % blocks.per_sequence * kRotaryBlock;
      const std::int64_t count = std::min(kRotaryBlock, seq_len - first);
      if (first != filled) fill_table(inv_freq, turn, first, count, cos, sin);
      filled = first;
      for (std::int64_t t = 0; t < count; ++t) {
        const std::int64_t row = (block / blocks.per_sequence * seq_len + first + t) * width * element;
        loops().rotate_heads(x.dtype, static_cast<const std::byte*>(x.data) + row, cos + t * half, sin + t * half, width / (2 * half), half,
                             static_cast<std::byte*>(y.data) + row);
      }
    }
  });
}

}  // namespace mica::cpu
