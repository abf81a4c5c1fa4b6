// SPDX-License-Identifier: Apache-2.0
// docs/parity.md C4: how parameters are cut one by one. Known answers by hand, and every element found where it belongs.
#include "mica/fsdp/per_parameter_layout.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "named_piece.hpp"

namespace mica::fsdp {
namespace {

using ::testing::HasSubstr;
using testing::named;
using testing::NamedPiece;

std::string error_of(const ParameterSpec& spec, int dim, int shard_size) {
  try {
    const PerParameterLayout layout({spec}, {dim}, shard_size, 1);
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "";
}

TEST(PerParameterLayout, C4_UnevenRowsOverTwoRanks) {
  const PerParameterLayout layout({{"w", {5, 3}}, {"b", {3}}}, {0, 0}, 2, 4);
  EXPECT_EQ(layout.shard_numel(), 9 + 2);  // 3 rows of 3, and ceil(3/2)
  EXPECT_EQ(layout.name(), "per_parameter 0,0");
  EXPECT_EQ(layout.gathered_numel(), 22);
  EXPECT_EQ(layout.begin_of(0), 0);
  EXPECT_EQ(layout.begin_of(1), 20);  // 2 * 9 rounded up to 4
  EXPECT_EQ(layout.unsharded_numel(), 24);
  EXPECT_EQ(named(layout, layout.pieces(0)), (std::vector<NamedPiece>{{"w", {5, 3}, 0, 9, 0}, {"b", {3}, 0, 2, 9}}));
  EXPECT_EQ(named(layout, layout.pieces(1)), (std::vector<NamedPiece>{{"w", {5, 3}, 9, 15, 0}, {"b", {3}, 2, 3, 9}}));
}

TEST(PerParameterLayout, C4_RanksWithoutRows) {
  const PerParameterLayout layout({{"w", {2, 3}}}, {0}, 4, 1);
  EXPECT_EQ(layout.shard_numel(), 3);
  EXPECT_TRUE(layout.rearrangement().empty()) << "a view of the gathered array";
  EXPECT_EQ(layout.num_indices(0, 1), 1);
  EXPECT_EQ(layout.num_indices(0, 3), 0);
  EXPECT_TRUE(layout.pieces(2).empty());
}

TEST(PerParameterLayout, C4_AnotherDimIsABox) {
  const PerParameterLayout layout({{"w", {2, 4, 3}}}, {-2}, 2, 1);
  EXPECT_EQ(layout.shard_numel(), 12);
  const std::vector<Piece> pieces = layout.pieces(1);
  ASSERT_EQ(pieces.size(), 1U);
  EXPECT_EQ(pieces[0].dim, 1);
  EXPECT_EQ(pieces[0].numel(), 12);
  ASSERT_EQ(pieces[0].num_runs(), 2);
  EXPECT_EQ(pieces[0].run(0).begin, 6);
  EXPECT_EQ(pieces[0].run(0).end, 12);
  EXPECT_EQ(pieces[0].run(1).begin, 18);
  EXPECT_EQ(pieces[0].run(1).offset, 6);
}

TEST(PerParameterLayout, C4_RefusedDims) {
  EXPECT_THAT(error_of({"w", {4, 3}}, 2, 2), HasSubstr("parameter w [4, 3] is to be sharded on dim 2, expected -2 to 1"));
  EXPECT_THAT(error_of({"w", {4, 3}}, -3, 2), HasSubstr("expected -2 to 1"));
  EXPECT_THAT(error_of({"w", {4, 3}}, 1, 2), HasSubstr("whose 3 indices do not divide evenly over 2 ranks"));
}

// Gathered elements, numbered through the pieces of all ranks, end up where the module sees them.
TEST(PerParameterLayout, C4_EveryElementFindsItsPlace) {
  const std::vector<ParameterSpec> specs{{"a", {7, 5}}, {"b", {3}}, {"c", {2, 12, 5}}, {"d", {1, 24}}};
  for (const int shard_size : {1, 2, 3, 4, 6, 12}) {
    const PerParameterLayout layout(specs, {0, 0, 1, -1}, shard_size, 8);
    std::vector<double> gathered(static_cast<std::size_t>(layout.gathered_numel()), 0.0);
    std::int64_t num_elements = 0;
    for (int r = 0; r < shard_size; ++r) {
      for (const Piece& piece : layout.pieces(r)) {
        const double id = 1000.0 * (1 + static_cast<double>(specs[piece.parameter].name[0] - 'a'));
        for (std::int64_t k = 0; k < piece.num_runs(); ++k) {
          const auto run = piece.run(k);
          for (std::int64_t i = 0; i < run.numel(); ++i) {
            gathered[static_cast<std::size_t>(r * layout.shard_numel() + run.offset + i)] = id + static_cast<double>(run.begin + i);
            ++num_elements;
          }
        }
      }
    }
    EXPECT_EQ(num_elements, layout.param_numel());
    std::vector<double> unsharded(static_cast<std::size_t>(layout.unsharded_numel()), -1.0);
    std::int64_t num_copied = 0;
    for (const BlockCopy& b : layout.rearrangement()) {
      for (std::int64_t k = 0; k < b.count; ++k) {
        for (std::int64_t i = 0; i < b.numel; ++i, ++num_copied) {
          unsharded[static_cast<std::size_t>(b.dst + k * b.dst_stride + i)] =
              gathered[static_cast<std::size_t>(b.src + k * b.src_stride + i)];
        }
      }
    }
    EXPECT_EQ(num_copied, layout.gathered_numel()) << "all of it, so that what goes back is never garbage";
    std::vector<bool> is_gap(unsharded.size(), false);
    for (const auto& gap : layout.gaps()) {
      for (std::int64_t i = gap.begin; i < gap.end; ++i) is_gap[static_cast<std::size_t>(i)] = true;
    }
    for (std::size_t p = 0; p < specs.size(); ++p) {
      for (std::int64_t i = 0; i < specs[p].shape.numel(); ++i) {
        const auto at = static_cast<std::size_t>(layout.begin_of(p) + i);
        EXPECT_EQ(unsharded[at], 1000.0 * static_cast<double>(p + 1) + static_cast<double>(i)) << shard_size << " " << specs[p].name;
        EXPECT_FALSE(is_gap[at]);
        is_gap[at] = true;
      }
    }
    EXPECT_THAT(is_gap, ::testing::Each(true)) << "gaps and parameters cover the unsharded array";
  }
}

}  // namespace
}  // namespace mica::fsdp
