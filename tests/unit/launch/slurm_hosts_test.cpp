// SPDX-License-Identifier: Apache-2.0
// Slurm's lists of hosts, whom of many a host connects to, and which of them cannot be reached, in networks of the test's own.
#include "mica/launch/slurm_hosts.hpp"

#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>

#include "mica/core/host.hpp"

#include "support/own_network.hpp"
#include "support/temporary_folder.hpp"

namespace mica::launch {
namespace {

using test::in_own_network;
using test::kSilentNetwork;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;

/// 10.9.8.1 is this host, which refuses connections to slurmd's port; for 10.9.8.3 a firewall answers.
const std::string kNetwork = "ip link set lo up && " + kSilentNetwork + " && ip route add unreachable 10.9.8.3";

UnreachableHost unreachable(const std::string& others) { return unreachable_slurm_host(host_name() + "," + others); }

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

TEST(SlurmHosts, AHostThatDoesNotAnswerIsSilentAndARefusalProvesThatOneIsThere) {
  in_own_network(kNetwork, [] {
    test::forbid_threads();
    EXPECT_EQ(unreachable("10.9.8.1").pair, "");
    const UnreachableHost host = unreachable("10.9.8.1,10.9.8.3,10.9.8.2");
    EXPECT_THAT(host.pair, EndsWith(" cannot reach 10.9.8.2 at 10.9.8.2 from mica0 (10.9.8.1): no answer within 1 s"));
    EXPECT_TRUE(host.is_silent);
    return !::testing::Test::HasFailure();
  });
}

TEST(SlurmHosts, AHostBehindAFirewallThatAnswersIsNotSilent) {
  in_own_network(kNetwork, [] {
    const UnreachableHost host = unreachable("10.9.8.3");
    EXPECT_THAT(host.pair, EndsWith(": No route to host"));
    EXPECT_FALSE(host.is_silent);
    return !::testing::Test::HasFailure();
  });
}

TEST(SlurmHosts, AFirewallThatDropsSlurmdsPortAloneIsNoLostHost) {
  in_own_network(kNetwork +
                     " && ip address add 10.9.8.4/32 dev lo && ip rule add pref 100 lookup local && ip rule del pref 0 && "
                     "ip rule add pref 50 to 10.9.8.4 ipproto tcp dport 6818 lookup 7 && ip route add 10.9.8.4/32 dev mica0 table 7",
                 [] {
                   EXPECT_EQ(unreachable("10.9.8.4").pair, "");
                   return !::testing::Test::HasFailure();
                 });
}

TEST(SlurmHosts, OneAddressThatAnswersIsEnough) {
  const test::TemporaryFolder folder;
  std::ofstream(folder / "hosts") << "10.9.8.3 twin\n10.9.8.1 twin\n10.9.8.3 blocked\n10.9.8.3 lost\n10.9.8.2 lost\n";
  in_own_network(kNetwork, [&] {
    EXPECT_EQ(::mount((folder / "hosts").c_str(), "/etc/hosts", nullptr, MS_BIND, nullptr), 0);
    EXPECT_EQ(unreachable("twin").pair, "");
    EXPECT_THAT(unreachable("twin,blocked").pair, EndsWith(" cannot reach blocked at 10.9.8.3 from no interface: No route to host"));
    const UnreachableHost lost = unreachable("lost");
    EXPECT_THAT(lost.pair, AllOf(HasSubstr("10.9.8.2 from mica0"), HasSubstr("10.9.8.3 from no interface")));
    EXPECT_FALSE(lost.is_silent);
    return !::testing::Test::HasFailure();
  });
}

}  // namespace
}  // namespace mica::launch
