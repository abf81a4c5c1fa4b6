// SPDX-License-Identifier: Apache-2.0
// Two nodes' ends of the watchdogs' ring in one process. Time is what the test says has passed; only TCP takes its own.
#include "node_ring.hpp"

#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

namespace mica::detail {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Seconds = NodeRing::Seconds;
using namespace std::chrono_literals;

constexpr int kFirst = 0, kSecond = 2;  // the lowest ranks of their nodes
constexpr Seconds kPatience{300};
/// What TCP on one host may take.
constexpr auto kLoopback = 5ms;

class Ring : public ::testing::Test {
 protected:
  Ring() {
    first_port_ = open(first_);
    second_port_ = open(second_);
  }
  static std::string open(std::unique_ptr<NodeRing>& ring) {
    const std::string contact = NodeRing::open(ring, /*is_leader=*/true, "launch-1");
    return contact.substr(0, contact.find(' '));  // its addresses may be none of this process's network
  }
  void connect(const std::string& first_contact, const std::string& second_contact) {
    const std::map<int, std::string> contacts = {{kFirst, first_contact}, {kSecond, second_contact}};
    first_->connect(kFirst, contacts);
    second_->connect(kSecond, contacts);
  }
  void connect() {
    connect(first_port_ + " 127.0.0.1", second_port_ + " 127.0.0.1");
    for (int i = 0; i < 20; ++i) exchange_both(Seconds(0.5), Seconds(0));
  }
  void exchange_both(Seconds passed, Seconds waited) {
    first_->exchange(passed, waited, kPatience);
    second_->exchange(passed, waited, kPatience);
    std::this_thread::sleep_for(kLoopback);
  }
  /// The first node goes on alone for so long.
  void let_pass(Seconds time, Seconds waited) {
    for (Seconds done{0}; done < time; done += Seconds(0.5)) first_->exchange(Seconds(0.5), waited, kPatience);
  }

  std::unique_ptr<NodeRing> first_, second_;
  std::string first_port_, second_port_;
};

TEST_F(Ring, NodesThatSendLinesMissNobody) {
  connect();
  for (int i = 0; i < 50; ++i) exchange_both(Seconds(0.5), Seconds(100));
  EXPECT_EQ(first_->alarm(), "");
  first_->count_silent(Seconds(3));
  EXPECT_THAT(first_->silent(), IsEmpty());
  EXPECT_TRUE(first_->has_neighbour());
  EXPECT_TRUE(second_->has_neighbour());
}

// The kernel of this host answers for it: only its process is held.
TEST_F(Ring, AnAliveHostsSilenceIsAnAlarmOnceTheWholePatienceIsOver) {
  connect();
  let_pass(kPatience - Seconds(20), kPatience);
  EXPECT_EQ(first_->alarm(), "");
  let_pass(Seconds(21), kPatience);
  EXPECT_THAT(first_->alarm(), HasSubstr("rank 2's node is silent for 300 s"));
  EXPECT_THAT(first_->silent(), ElementsAre(kSecond));
}

// By a debugger: its neighbour's lines have piled up.
TEST_F(Ring, WhoWasHeldForLongFindsItsNeighbourAlive) {
  connect();
  let_pass(Seconds(2000), Seconds(0));
  for (int i = 0; i < 10; ++i) exchange_both(Seconds(0.5), Seconds(0));
  EXPECT_EQ(second_->alarm(), "");
  EXPECT_THAT(second_->gone(), IsEmpty());
}

TEST_F(Ring, SilenceIsNoAlarmWhileNobodyWaits) {
  connect();
  let_pass(2 * kPatience, Seconds(0));
  EXPECT_EQ(first_->alarm(), "");
}

TEST_F(Ring, WhoSaidNothingLatelyIsCountedAtTheEndOfAJob) {
  connect();
  let_pass(Seconds(2), Seconds(4));
  first_->count_silent(Seconds(3));
  EXPECT_THAT(first_->silent(), IsEmpty());
  let_pass(Seconds(2), Seconds(4));
  first_->count_silent(Seconds(3));
  EXPECT_THAT(first_->silent(), ElementsAre(kSecond));
}

TEST_F(Ring, AnAlarmReachesTheOtherNode) {
  connect();
  first_->send_alarm("rank 1 is lost");
  for (int i = 0; i < 20; ++i) exchange_both(Seconds(0.1), Seconds(0));
  EXPECT_EQ(second_->alarm(), "rank 1 is lost");
}

TEST_F(Ring, AnEndWithoutAGoodbyeIsADeath) {
  connect();
  second_.reset();
  std::this_thread::sleep_for(4 * kLoopback);
  let_pass(Seconds(6), Seconds(6));
  EXPECT_THAT(first_->alarm(), HasSubstr("rank 2 has closed its connection"));
  EXPECT_THAT(first_->gone(), ElementsAre(kSecond));
}

TEST_F(Ring, AnEndWithAGoodbyeIsNone) {
  connect();
  second_->say_goodbye();
  second_.reset();
  std::this_thread::sleep_for(4 * kLoopback);
  let_pass(2 * kPatience, 2 * kPatience);
  EXPECT_EQ(first_->alarm(), "");
  EXPECT_THAT(first_->gone(), IsEmpty());
}

// A node has addresses that others cannot reach; and what is lost once may come through later.
TEST_F(Ring, AllAddressesAreTriedAgainAndAgain) {
  const UniqueFd late(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  ASSERT_EQ(::bind(late.get(), reinterpret_cast<const sockaddr*>(&address), length), 0);
  ASSERT_EQ(::getsockname(late.get(), reinterpret_cast<sockaddr*>(&address), &length), 0);
  connect("1 127.0.0.1", std::to_string(ntohs(address.sin_port)) + " 127.0.0.2 127.0.0.1");
  let_pass(Seconds(20), Seconds(0));
  EXPECT_FALSE(first_->has_neighbour());
  ASSERT_EQ(::listen(late.get(), 1), 0);
  let_pass(Seconds(10), Seconds(0));
  EXPECT_TRUE(first_->has_neighbour());
}

}  // namespace
}  // namespace mica::detail
