// SPDX-License-Identifier: Apache-2.0
// docs/parity.md C1, C2: known answers, written out by hand.
#include "mica/fsdp/shard_layout.hpp"

#include <gtest/gtest.h>

#include "named_piece.hpp"

namespace mica::fsdp {
namespace {

using testing::named;
using testing::NamedPiece;

TEST(FlatLayout, C1_FiveByFiveOverTwoRanks) {
  const FlatLayout layout({{"weight", {5, 5}}}, 2, 1);
  EXPECT_EQ(layout.unsharded_numel(), 26);
  EXPECT_EQ(layout.shard_numel(), 13);
  EXPECT_EQ(named(layout, layout.pieces(0)), (std::vector<NamedPiece>{{"weight", {5, 5}, 0, 13, 0}}));
  EXPECT_EQ(named(layout, layout.pieces(1)), (std::vector<NamedPiece>{{"weight", {5, 5}, 13, 25, 0}}));
  ASSERT_EQ(layout.gaps().size(), 1U);
  EXPECT_EQ(layout.gaps()[0].begin, 25);
  EXPECT_EQ(layout.gaps()[0].end, 26);
}

TEST(FlatLayout, C1_LinearWithAlignment) {
  const FlatLayout layout({{"weight", {7, 5}}, {"bias", {7}}}, 2, 4);
  EXPECT_EQ(layout.param_numel(), 42);
  EXPECT_EQ(layout.unsharded_numel(), 44);
  EXPECT_EQ(layout.shard_numel(), 22);
  EXPECT_EQ(layout.begin_of(1), 36);
  EXPECT_EQ(named(layout, layout.pieces(0)), (std::vector<NamedPiece>{{"weight", {7, 5}, 0, 22, 0}}));
  EXPECT_EQ(named(layout, layout.pieces(1)), (std::vector<NamedPiece>{{"weight", {7, 5}, 22, 35, 0}, {"bias", {7}, 0, 7, 14}}));
}

TEST(FlatLayout, C1_RangesPastTheEndAndEmptyParts) {
  const FlatLayout layout({{"weight", {7, 5}}, {"bias", {7}}}, 2, 4);
  EXPECT_EQ(layout.pieces_in(35, 36).size(), 0U);  // the alignment gap
  EXPECT_EQ(named(layout, layout.pieces_in(34, 1000)), (std::vector<NamedPiece>{{"weight", {7, 5}, 34, 35, 0}, {"bias", {7}, 0, 7, 2}}));
  EXPECT_EQ(layout.pieces_in(44, 100).size(), 0U);
}

TEST(FlatLayout, C2_MoreRanksThanElements) {
  const FlatLayout layout({{"scale", {3}}}, 5, 1);
  EXPECT_EQ(layout.shard_numel(), 1);
  EXPECT_EQ(named(layout, layout.pieces(2)), (std::vector<NamedPiece>{{"scale", {3}, 2, 3, 0}}));
  EXPECT_TRUE(layout.pieces(3).empty());
  EXPECT_TRUE(layout.pieces(4).empty());
}

TEST(FlatLayout, PiecesCoverEveryElementOnce) {
  for (const int shard_size : {1, 2, 3, 4, 7, 128}) {
    const FlatLayout layout({{"a", {3, 5, 7}}, {"b", {1}}, {"c", {0}}, {"d", {2, 2, 2, 2, 3}}, {"e", {129}}}, shard_size, 8);
    std::vector<std::vector<int>> seen{std::vector<int>(105), std::vector<int>(1), {}, std::vector<int>(48), std::vector<int>(129)};
    for (int rank = 0; rank < shard_size; ++rank) {
      for (const Piece& piece : layout.pieces(rank)) {
        EXPECT_LE(piece.offset + piece.numel(), layout.shard_numel());
        const auto p = static_cast<std::size_t>(layout.parameters()[piece.parameter].name[0] - 'a');
        for (std::int64_t i = piece.begin; i < piece.end; ++i) {
          ++seen[p][static_cast<std::size_t>(i)];
          EXPECT_EQ(rank * layout.shard_numel() + piece.offset + i - piece.begin, layout.begin_of(p) + i);
        }
      }
    }
    for (const auto& counts : seen) {
      for (const int count : counts) EXPECT_EQ(count, 1);
    }
  }
}

TEST(FlatLayout, B6_RefusesScalarsByNameAndEmptyLists) {
  EXPECT_THROW(FlatLayout({}, 2, 1), Error);
  try {
    const FlatLayout layout({{"temperature", Shape{}}}, 2, 1);
    FAIL() << "a scalar was accepted";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("temperature"), std::string::npos);
  }
}

}  // namespace
}  // namespace mica::fsdp
