// SPDX-License-Identifier: Apache-2.0
#include "mica/comm/node_map.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace mica {
namespace {

using ::testing::ElementsAre;

TEST(NodeMap, NumbersNodesByTheirLowestRanks) {
  const NodeMap map({7, 3, 7, 3, 3});
  EXPECT_EQ(map.num_ranks(), 5);
  EXPECT_EQ(map.num_nodes(), 2);
  EXPECT_THAT(map.members(0), ElementsAre(0, 2));
  EXPECT_THAT(map.members(1), ElementsAre(1, 3, 4));
  EXPECT_EQ(map.node_of(2), 0);
  EXPECT_EQ(map.node_of(4), 1);
}

TEST(NodeMap, ACounterpartHasTheSameNumberOnItsNode) {
  const NodeMap map({7, 3, 7, 3, 3});
  const auto counterparts_on = [&](int node) {
    std::vector<int> all;
    for (int rank = 0; rank < 5; ++rank) all.push_back(map.counterpart(rank, node));
    return all;
  };
  EXPECT_THAT(counterparts_on(0), ElementsAre(0, 0, 2, 2, 0)) << "rank 4 is the third on its node; of two there, the first";
  EXPECT_THAT(counterparts_on(1), ElementsAre(1, 1, 3, 3, 4));
  EXPECT_EQ(map.most_members(), 3);
  EXPECT_EQ(map.most_counterparts(), 2);
  EXPECT_EQ(NodeMap({0, 0, 0, 1, 2, 2, 3, 3, 3, 3}).most_counterparts(), 9);  // of the node with one rank: all others
  EXPECT_EQ(NodeMap({0, 0, 1, 1, 2, 2, 2}).most_counterparts(), 3);  // of a node with two ranks: 1 of the other two, 2 of the three
}

TEST(NodeMap, SaysWhereCounterpartsPay) {
  EXPECT_FALSE(NodeMap({0}).has_neighbors_and_nodes());
  EXPECT_FALSE(NodeMap({0, 0, 0}).has_neighbors_and_nodes());
  EXPECT_FALSE(NodeMap({0, 1, 2}).has_neighbors_and_nodes());
  EXPECT_TRUE(NodeMap({0, 1, 0}).has_neighbors_and_nodes());
}

// Of two nodes with 2, with 1 and 3, and with 3 ranks.
TEST(NodeMap, CountsSlicesThatCross) {
  EXPECT_EQ(NodeMap({0, 0, 1, 1}).slices_by_node(), 2 + 2);
  EXPECT_EQ(NodeMap({0, 0, 1, 1}).slices_by_rank(), 4 + 4);
  EXPECT_EQ(NodeMap({0, 1, 1, 1}).slices_by_node(), 3 + 1);
  EXPECT_EQ(NodeMap({0, 1, 1, 1}).slices_by_rank(), 3 + 3);
  EXPECT_EQ(NodeMap({0, 1, 0, 1, 0, 1}).slices_by_node(), 3 + 3);
  EXPECT_EQ(NodeMap({0, 1, 0, 1, 0, 1}).slices_by_rank(), 9 + 9);
}

}  // namespace
}  // namespace mica
