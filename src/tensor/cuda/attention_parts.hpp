// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "mica/tensor/kernels.hpp"

namespace mica::cuda {

/// Some sequences with all their heads, or some heads of one sequence: those that share kv_heads k and v.
struct AttentionPart {
  std::int64_t first_sequence = 0, sequences = 0;
  std::int64_t first_kv_head = 0, kv_heads = 0;
};

/// Divides an attention into parts of at most `most_bytes`, at `bytes_per_head` for each head (but at least one k and v). Parts differ by
/// at most one sequence, or one k and v, because a small remainder would not fill the GPU.
[[nodiscard]] inline std::vector<AttentionPart> attention_parts(const AttentionShape& shape, std::int64_t bytes_per_head,
                                                                std::int64_t most_bytes) {
  const std::int64_t all = shape.num_kv_heads();
  const std::int64_t shared = std::clamp(most_bytes / (bytes_per_head * shape.group()), std::int64_t{1}, all);
  const std::int64_t sequences = std::clamp(shared < all ? 1 : most_bytes / (bytes_per_head * shape.heads), std::int64_t{1}, shape.batch);
  const std::int64_t num_b = (shape.batch + sequences - 1) / sequences, num_k = (all + shared - 1) / shared;
  std::vector<AttentionPart> parts;
  for (std::int64_t b = 0; b < num_b; ++b) {
    const std::int64_t first_b = b * shape.batch / num_b, end_b = (b + 1) * shape.batch / num_b;
    for (std::int64_t k = 0; k < num_k; ++k) {
      const std::int64_t first_k = k * all / num_k, end_k = (k + 1) * all / num_k;
      parts.push_back({first_b, end_b - first_b, first_k, end_k - first_k});
    }
  }
  return parts;
}

}  // namespace mica::cuda
