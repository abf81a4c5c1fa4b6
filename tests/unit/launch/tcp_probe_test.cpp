// SPDX-License-Identifier: Apache-2.0
// Who can be reached over TCP, and by which interface, in networks of the test's own.
#include "mica/launch/tcp_probe.hpp"

#include <cstdlib>
#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

namespace mica::launch {
namespace {

using ::testing::AnyOf;
using ::testing::StartsWith;

constexpr std::chrono::milliseconds kLong{20'000}, kShort{300};

/// A cable with nobody at its other end: what is sent is lost, as by a firewall between two hosts.
const std::string kSilentNetwork =
    "ip link add mica0 type veth peer name nobody && ip addr add 10.9.8.1/24 dev mica0 && ip link set mica0 up && ip link set nobody up";

/// Runs `commands` and then `body` in a network namespace of its own, as root or in a user namespace. Failures of the body fail the test.
void in_own_network(const std::string& commands, const std::function<bool()>& body) {
  const pid_t pid = ::fork();
  ASSERT_GE(pid, 0);
  if (pid == 0) {
    if (::unshare(CLONE_NEWNET | (::geteuid() == 0 ? 0 : CLONE_NEWUSER)) != 0) ::_exit(99);
    if (std::system(commands.c_str()) != 0) ::_exit(98);
    ::_exit(body() ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  ASSERT_NE(WEXITSTATUS(status), 99) << "no network namespace is possible";
  ASSERT_NE(WEXITSTATUS(status), 98) << commands;
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(TcpProbe, ABeaconAnswersEverybody) {
  const Beacon beacon("rank 3");
  for (int times = 0; times < 3; ++times) EXPECT_EQ(probe("127.0.0.1", beacon.port(), "rank 3", kLong), "");
  EXPECT_EQ(probe("127.0.0.1", beacon.port(), "rank 4", kLong), "another process answers there");
  EXPECT_EQ(probe("127.0.0.1", beacon.port(), "rank 33", kLong), "another process answers there");
  EXPECT_EQ(interface_to("127.0.0.1"), "lo (127.0.0.1)");
}

TEST(TcpProbe, NobodyAtThePort) {
  int port = 0;
  {
    const Beacon beacon("gone");
    port = beacon.port();
  }
  EXPECT_EQ(probe("127.0.0.1", port, "gone", kLong), "Connection refused");
  EXPECT_EQ(connection_failure("127.0.0.1", port, kLong), "") << "the host is there";
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
    EXPECT_EQ(probe("10.9.8.2", 4711, "x", kShort), "no answer within 0.3 s");
    EXPECT_EQ(connection_failure("10.9.8.2", 4711, kShort), "no answer within 0.3 s");
    EXPECT_EQ(interface_to("10.9.8.2"), "mica0 (10.9.8.1)");
    EXPECT_EQ(probe("10.200.0.1", 4711, "x", kShort), "Network is unreachable");
    EXPECT_EQ(interface_to("10.200.0.1"), "no interface");
    return !::testing::Test::HasFailure();
  });
}

}  // namespace
}  // namespace mica::launch
