// SPDX-License-Identifier: Apache-2.0
#include "../../../src/tensor/cuda/attention_parts.hpp"

#include <algorithm>

#include <gtest/gtest.h>

namespace mica::cuda {
namespace {

/// Every pair of a sequence and a k and v lies in one part, no part needs more than allowed (or is as small as can be).
void expect_covered(const AttentionShape& shape, std::int64_t bytes_per_head, std::int64_t most_bytes, std::size_t num_parts) {
  const std::vector<AttentionPart> parts = attention_parts(shape, bytes_per_head, most_bytes);
  EXPECT_EQ(parts.size(), num_parts);
  const auto [fewest, most] = std::ranges::minmax(parts, {}, &AttentionPart::sequences);
  EXPECT_LE(most.sequences, fewest.sequences + 1);
  const auto [narrow, wide] = std::ranges::minmax(parts, {}, &AttentionPart::kv_heads);
  EXPECT_LE(wide.kv_heads, narrow.kv_heads + 1);
  std::vector<int> times(static_cast<std::size_t>(shape.batch * shape.num_kv_heads()));
  for (const AttentionPart& part : parts) {
    const std::int64_t bytes = part.sequences * part.kv_heads * shape.group() * bytes_per_head;
    EXPECT_TRUE(bytes <= most_bytes || (part.sequences == 1 && part.kv_heads == 1)) << bytes;
    EXPECT_TRUE(part.sequences == 1 || part.kv_heads == shape.num_kv_heads()) << "cuDNN wants its lse without gaps";
    for (std::int64_t b = part.first_sequence; b < part.first_sequence + part.sequences; ++b) {
      for (std::int64_t k = part.first_kv_head; k < part.first_kv_head + part.kv_heads; ++k) {
        ++times.at(static_cast<std::size_t>(b * shape.num_kv_heads() + k));
      }
    }
  }
  EXPECT_EQ(times, std::vector<int>(times.size(), 1));
}

TEST(AttentionParts, CoverAllHeadsOnce) {
  expect_covered({8, 64, 12, 64}, 10, 1000, 1);   // 960 bytes: all at once
  expect_covered({8, 64, 12, 64}, 10, 959, 2);    // 7 sequences fit: 4 and 4
  expect_covered({5, 64, 12, 64}, 10, 250, 3);    // 2 sequences fit: 1, 2 and 2
  expect_covered({3, 64, 12, 64}, 10, 119, 6);    // 11 heads of one fit: 6 and 6
  expect_covered({2, 64, 12, 64, 4}, 10, 90, 4);  // groups of 3: 3 k and v fit, 2 and 2
  expect_covered({2, 64, 12, 64, 4}, 10, 29, 8);  // less than a group: one k and v each
  expect_covered({1, 64, 1, 64}, 10, 1, 1);
  expect_covered({64, 1024, 12, 64}, 2 << 20, 1 << 30, 2);  // 42 sequences fit: 32 and 32
}

}  // namespace
}  // namespace mica::cuda
