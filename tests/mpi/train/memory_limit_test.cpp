// SPDX-License-Identifier: Apache-2.0
// What the ranks of a node need together is held against the limits that they share.
#include "mica/train/memory_limit.hpp"

#include <gtest/gtest.h>

namespace mica::train {
namespace {

TEST(TightestLimit, TheSumOfTheNodesRanksIsCompared) {
  const mpi::Communicator world = mpi::Communicator::world();
  const int ranks = world.num_ranks();
  // Rank r needs 100 + r.
  const std::int64_t sum = 100 * ranks + ranks * (ranks - 1) / 2;
  const MemoryShare share = tightest_limit(world, 100 + world.rank(), {{1000, "the node", "node"}, {500, "the job", "job"}});
  EXPECT_EQ(share.limit.name, "the job");
  EXPECT_EQ(share.limit.bytes, 500);
  EXPECT_EQ(share.needed, sum);
  EXPECT_EQ(share.num_ranks, ranks);
}

TEST(TightestLimit, OnlyRanksThatShareALimitAreCounted) {
  const mpi::Communicator world = mpi::Communicator::world();
  const int ranks = world.num_ranks();
  const std::string own = "container " + std::to_string(world.rank());
  const MemoryShare alone = tightest_limit(world, 100, {{1000, "the node", "node"}, {150, "a container", own}});
  EXPECT_EQ(alone.limit.name, "a container");
  EXPECT_EQ(alone.needed, 100);
  EXPECT_EQ(alone.num_ranks, 1);
  // The node is the tighter one as soon as its ranks together come closer to it.
  const MemoryShare node = tightest_limit(world, 100, {{100 * ranks + 10, "the node", "node"}, {150, "a container", own}});
  EXPECT_EQ(node.limit.name, "the node");
  EXPECT_EQ(node.needed, 100 * ranks);
}

}  // namespace
}  // namespace mica::train
