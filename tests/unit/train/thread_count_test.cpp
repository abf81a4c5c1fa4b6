// SPDX-License-Identifier: Apache-2.0
// How many threads a rank takes of the cores that it may run on.
#include "mica/train/thread_count.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace mica::train {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

Cores cores(int begin, int end) {
  Cores list;
  for (int core = begin; core < end; ++core) list.push_back(core);
  return list;
}

TEST(ThreadCount, BoundRanksTakeTheirOwnCores) {
  std::vector<Cores> ranks;
  for (int rank = 0; rank < 8; ++rank) ranks.push_back(cores(8 * rank, 8 * rank + 8));
  for (int rank = 0; rank < 8; ++rank) EXPECT_EQ(threads_of_rank(ranks, rank), 8) << rank;
}

TEST(ThreadCount, UnboundRanksDivideTheNode) {
  EXPECT_EQ(threads_of_rank({cores(0, 8)}, 0), 8);
  EXPECT_EQ(threads_of_rank({cores(0, 8), cores(0, 8), cores(0, 8)}, 1), 2);
  EXPECT_EQ(threads_of_rank({cores(0, 2), cores(0, 2), cores(0, 2)}, 2), 1) << "never none";
}

TEST(ThreadCount, OnlyRanksOnTheSameCoresShareThem) {
  // Two sockets of 6 cores, two ranks on the first, one on the second, and one bound to two cores of the first.
  const std::vector<Cores> ranks{cores(0, 6), cores(0, 6), cores(6, 12), cores(4, 6)};
  EXPECT_EQ(threads_of_rank(ranks, 0), 2);
  EXPECT_EQ(threads_of_rank(ranks, 1), 2);
  EXPECT_EQ(threads_of_rank(ranks, 2), 6);
  EXPECT_EQ(threads_of_rank(ranks, 3), 1);
}

TEST(ThreadCount, RanksThatAreBoundToAPartOfTheNodeAreTold) {
  EXPECT_THAT(
      crowding_of("node1", {cores(0, 1), cores(0, 1), cores(0, 1)}, {1, 1, 1}, 8),
      AllOf(StartsWith("the 3 ranks of node1 have 3 threads in all, but are bound to 1 of its 8 cores (0)"), HasSubstr("--bind-to none")));
  EXPECT_THAT(crowding_of("node1", {cores(0, 2), cores(0, 2)}, {2, 2}, 8), HasSubstr("bound to 2 of its 8 cores (0, 1)"));
}

TEST(ThreadCount, MoreThreadsThanCoresAreTold) {
  EXPECT_THAT(crowding_of("node1", {cores(0, 2), cores(0, 2), cores(0, 2)}, {1, 1, 1}, 2),
              AllOf(StartsWith("the 3 ranks of node1 have 3 threads in all on 2 cores"), HasSubstr("fewer ranks")));
  EXPECT_EQ(crowding_of("node1", {cores(0, 2), cores(0, 2)}, {1, 1}, 2), "");
  EXPECT_EQ(crowding_of("node1", {cores(0, 4), cores(4, 8)}, {4, 4}, 8), "");
  EXPECT_EQ(crowding_of("node1", {cores(0, 1), cores(1, 2)}, {1, 1}, 8), "") << "bound to a core each, as asked";
  EXPECT_EQ(crowding_of("node1", {cores(0, 1)}, {4}, 8), "") << "one rank alone: its own warning";
}

}  // namespace
}  // namespace mica::train
