// SPDX-License-Identifier: Apache-2.0
// What the check of the network's links makes of what they carried. cluster.links has slow ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mica/launch/checks.hpp"

namespace mica::launch {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

/// The warning for nodes of two ranks, with MB/s from the node before each one; empty: none.
std::string warning_for(const std::vector<std::string>& mb_s_of_nodes) {
  const mpi::Communicator world = mpi::Communicator::world();
  std::vector<RankWords> all;
  for (const std::string& mb_s : mb_s_of_nodes) {
    const std::string host = "node" + std::to_string(all.size() / 2);
    all.push_back({static_cast<int>(all.size()), host, host + "/boot", mb_s});
    all.push_back({static_cast<int>(all.size()), host, host + "/boot", ""});
  }
  const std::vector<Finding> findings = link_speed(world).judge(all);
  EXPECT_LE(findings.size(), 1u);
  if (findings.empty()) return "";
  EXPECT_EQ(findings[0].kind, Finding::Kind::warning);
  return findings[0].text;
}

TEST(LinkSpeed, HealthyLinksAreLeftInPeace) {
  EXPECT_EQ(warning_for({"24", "22", "9"}), "") << "less than eight times";
  EXPECT_EQ(warning_for({"12000", "900", "800"}), "") << "slower by far, and fast enough";
  EXPECT_EQ(warning_for({"24", "0.2", "24"}), "") << "neither of this link's nodes is slow with its other neighbour";
  EXPECT_EQ(warning_for({"24", "0.2"}), "") << "either may be the slow one";
  EXPECT_EQ(warning_for({""}), "") << "one node";
}

TEST(LinkSpeed, ANodeBetweenTwoSlowLinksIsTold) {
  EXPECT_THAT(warning_for({"24", "0.2", "0.25"}),
              AllOf(StartsWith("the network link of node1 (rank 2) carries 0.2 MB/s in and 0.25 MB/s out, where other nodes reach 24"),
                    HasSubstr("--exclude=node1")));
  EXPECT_THAT(warning_for({"0.2", "24", "0.25"}), StartsWith("the network link of node2 (rank 4) carries 0.25 MB/s in and 0.2 MB/s out"));
}

TEST(LinkSpeed, ANetworkThatIsOfNoUseIsTold) {
  EXPECT_THAT(warning_for({"0.2", "0.25"}), StartsWith("no node receives more than 0.25 MB/s from another one"));
}

TEST(LinkSpeed, OneNodeHasNothingToMeasure) {
  const mpi::Communicator world = mpi::Communicator::world();
  EXPECT_EQ(link_speed(world).look(), "");
  EXPECT_TRUE(link_speed(world).asks_twice);
}

}  // namespace
}  // namespace mica::launch
