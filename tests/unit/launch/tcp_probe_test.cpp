// SPDX-License-Identifier: Apache-2.0
// Who can be reached over TCP, and by which interface, in networks of the test's own.
#include "mica/launch/tcp_probe.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/own_network.hpp"

namespace mica::launch {
namespace {

using test::in_own_network;
using test::kSilentNetwork;
using ::testing::ElementsAre;

constexpr std::chrono::milliseconds kLong{20'000}, kShort{300};

TEST(TcpProbe, ABeaconAnswersEverybody) {
  const Beacon beacon("rank 3");
  for (int times = 0; times < 3; ++times) EXPECT_THAT(probe({"127.0.0.1"}, beacon.port(), "rank 3", kLong), ElementsAre(""));
  EXPECT_THAT(probe({"127.0.0.1"}, beacon.port(), "rank 4", kLong), ElementsAre("another process answers there"));
  EXPECT_THAT(probe({"127.0.0.1"}, beacon.port(), "rank 33", kLong), ElementsAre("another process answers there"));
  EXPECT_EQ(interface_to("127.0.0.1"), "lo (127.0.0.1)");
}

TEST(TcpProbe, NobodyAtThePort) {
  int port = 0;
  {
    const Beacon beacon("gone");
    port = beacon.port();
  }
  EXPECT_THAT(probe({"127.0.0.1"}, port, "gone", kLong), ElementsAre("Connection refused"));
  EXPECT_FALSE(connect_to("127.0.0.1", port, kLong).is_silent) << "the host is there";
}

TEST(TcpProbe, AddressesAreThoseOfInterfacesThatAreUp) {
  in_own_network(
      "ip link set lo up && " + kSilentNetwork + " && ip link add mica1 type veth peer name down && ip addr add 10.9.9.1/24 dev mica1", [] {
        const std::vector<Address> found = own_addresses();
        EXPECT_EQ(found.size(), 1u);
        EXPECT_EQ(found.at(0).ip, "10.9.8.1");
        EXPECT_EQ(found.at(0).interface, "mica0");
        return !::testing::Test::HasFailure();
      });
}

TEST(TcpProbe, AHostThatDoesNotAnswerAndOneWithoutARoute) {
  in_own_network(kSilentNetwork, [] {
    EXPECT_THAT(probe({"10.9.8.2", "10.200.0.1", "10.9.8.3"}, 4711, "x", kShort),
                ElementsAre("no answer within 0.3 s", "Network is unreachable", "no answer within 0.3 s"));
    EXPECT_TRUE(connect_to("10.9.8.2", 4711, kShort).is_silent);
    EXPECT_FALSE(connect_to("10.200.0.1", 4711, kShort).is_silent);
    EXPECT_EQ(interface_to("10.9.8.2"), "mica0 (10.9.8.1)");
    EXPECT_EQ(interface_to("10.200.0.1"), "no interface");
    return !::testing::Test::HasFailure();
  });
}

}  // namespace
}  // namespace mica::launch
