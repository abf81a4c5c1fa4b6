// SPDX-License-Identifier: Apache-2.0
#include "block_split.hpp"

#include <numeric>
#include <random>

#include <gtest/gtest.h>

namespace mica::checkpoint {
namespace {

TEST(SplitBlocks, EveryBlockOnceInOrderAndInEqualParts) {
  std::mt19937 random(3);
  for (int round = 0; round < 300; ++round) {
    std::vector<std::int64_t> num_blocks(1 + random() % 7);
    for (std::int64_t& blocks : num_blocks) blocks = static_cast<std::int64_t>(random() % 9);
    const std::int64_t total = std::reduce(num_blocks.begin(), num_blocks.end());
    const auto num_parts = static_cast<std::int64_t>(1 + random() % 11);
    const auto parts = split_blocks(num_blocks, num_parts);
    ASSERT_EQ(std::ssize(parts), num_parts);
    std::vector<BlockRange> blocks;  // one by one
    for (const std::vector<BlockRange>& part : parts) {
      std::int64_t in_part = 0;
      for (const BlockRange& range : part) {
        ASSERT_LT(range.first, range.last);
        in_part += range.last - range.first;
        for (std::int64_t b = range.first; b < range.last; ++b) blocks.push_back({range.file, b, b + 1});
      }
      EXPECT_GE(in_part, total / num_parts);
      EXPECT_LE(in_part, total / num_parts + 1);
    }
    std::vector<BlockRange> expected;
    for (std::size_t file = 0; file < num_blocks.size(); ++file) {
      for (std::int64_t b = 0; b < num_blocks[file]; ++b) expected.push_back({file, b, b + 1});
    }
    EXPECT_EQ(blocks, expected);
  }
}

// A walk over all files for each rank took minutes with 4,096 of both.
TEST(SplitBlocks, ManyRanksAndFiles) {
  constexpr std::int64_t kRanks = 100'000;
  const auto parts = split_blocks(std::vector<std::int64_t>(kRanks, 80), kRanks);
  EXPECT_EQ(parts.back(), (std::vector<BlockRange>{{kRanks - 1, 0, 80}}));
}

}  // namespace
}  // namespace mica::checkpoint
