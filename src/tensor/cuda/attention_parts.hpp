#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "mica/tensor/kernels.hpp"

namespace mica::cuda {

/// Some sequences with all their heads, or some heads of one sequence: those of kv_heads many k and v.
struct AttentionPart {
  std::int64_t first_sequence = 0, sequences = 0;
  std::int64_t first_kv_head = 0, kv_heads = 0;
};

/// Cuts an attention into parts with at most `most_bytes` of `bytes_per_head` for each head (one k and v at least).
[[nodiscard]] inline std::vector<AttentionPart> attention_parts(const AttentionShape& shape,
                                                                std::int64_t bytes_per_head, std::int64_t most_bytes) {
  const std::int64_t all = shape.num_kv_heads();
  const std::int64_t shared = std::clamp(most_bytes / (bytes_per_head * shape.group()), std::int64_t{1}, all);
  const std::int64_t sequences =
      std::clamp(shared < all ? 1 : most_bytes / (bytes_per_head * shape.heads), std::int64_t{1}, shape.batch);
  std::vector<AttentionPart> parts;
  for (std::int64_t b = 0; b < shape.batch; b += sequences) {
    for (std::int64_t k = 0; k < all; k += shared) {
      parts.push_back({b, std::min(sequences, shape.batch - b), k, std::min(shared, all - k)});
    }
  }
  return parts;
}

}  // namespace mica::cuda
