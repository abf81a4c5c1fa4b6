// SPDX-License-Identifier: Apache-2.0
// Slurm's lists of hosts, and whom of many a host connects to.
#include "mica/launch/slurm_hosts.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace mica::launch {
namespace {

using ::testing::ElementsAre;

TEST(SlurmHosts, ListsAreExpanded) {
  EXPECT_THAT(expand_hosts("node1"), ElementsAre("node1"));
  EXPECT_THAT(expand_hosts("node1,login"), ElementsAre("node1", "login"));
  EXPECT_THAT(expand_hosts("node[08-11]"), ElementsAre("node08", "node09", "node10", "node11"));
  EXPECT_THAT(expand_hosts("a,node[1,3-4]x,b[7]"), ElementsAre("a", "node1x", "node3x", "node4x", "b7"));
  EXPECT_THAT(expand_hosts(""), ElementsAre());
}

TEST(SlurmHosts, AllOfAFewAndSomeOfMany) {
  EXPECT_THAT(peers_of(1, 4), ElementsAre(0, 2, 3));
  EXPECT_THAT(peers_of(0, 1), ElementsAre());
  EXPECT_EQ(peers_of(3, 64).size(), 63u);
  EXPECT_THAT(peers_of(0, 100), ElementsAre(1, 2, 4, 8, 16, 32, 36, 64, 68, 84, 92, 96, 98, 99));
}

}  // namespace
}  // namespace mica::launch
