// SPDX-License-Identifier: Apache-2.0
// Two nodes' ends of the watchdogs' ring in one process. Time is what the test says has passed; only TCP takes its own.
#include "node_ring.hpp"

#include <cerrno>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "job_end.hpp"

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

/// A neighbour, or somebody else, as the test wants it.
class Program {
 public:
  explicit Program(in_addr_t ip, int port = 0) {
    address_.sin_family = AF_INET;
    address_.sin_addr.s_addr = htonl(ip);
    address_.sin_port = htons(static_cast<std::uint16_t>(port));
    socklen_t length = sizeof address_;
    const bool is_bound = ::bind(socket_.get(), reinterpret_cast<const sockaddr*>(&address_), length) == 0 &&
                          ::getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&address_), &length) == 0;
    EXPECT_TRUE(is_bound) << std::strerror(errno);
  }
  [[nodiscard]] int port() const { return ntohs(address_.sin_port); }
  void listen() const { EXPECT_EQ(::listen(socket_.get(), 8), 0) << std::strerror(errno); }
  /// Takes the next connection. @returns whether there was one
  bool accept() {
    caller_ = UniqueFd(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    return static_cast<bool>(caller_);
  }
  void say(const std::string& text) const {
    EXPECT_EQ(::send(caller_.get(), text.data(), text.size(), MSG_NOSIGNAL), std::ssize(text));
    std::this_thread::sleep_for(4 * kLoopback);
  }
  void hang_up() {
    caller_.reset();
    std::this_thread::sleep_for(4 * kLoopback);
  }

 private:
  UniqueFd socket_{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
  sockaddr_in address_{};
  UniqueFd caller_;
};

constexpr in_addr_t kOneAddress = INADDR_LOOPBACK, kAnotherAddress = INADDR_LOOPBACK + 1;
const std::string kAnswerOfSecond = "mica launch-1 2\n";

// A node has addresses that others cannot reach; and what is lost once may come through later.
TEST_F(Ring, AllAddressesAreTriedAgainAndAgain) {
  Program late(kOneAddress);
  connect("1 127.0.0.1", std::to_string(late.port()) + " 127.0.0.2 127.0.0.1");
  let_pass(Seconds(20), Seconds(0));
  late.listen();
  for (int i = 0; i < 20 && !late.accept(); ++i) let_pass(Seconds(0.5), Seconds(0));
  late.say(kAnswerOfSecond);
  let_pass(Seconds(0.5), Seconds(0));
  EXPECT_TRUE(first_->has_neighbour());
}

// Hosts have addresses in common, those of their containers' bridges: there this host's own programs accept the connection.
TEST_F(Ring, OnlyWhoSaysLaunchAndRankIsTheNeighbour) {
  const std::vector<std::string> strangers_words = {"", "SSH-2.0-OpenSSH_9.2\r\n", "mica launch-0 2\n", "mica launch-1 0\n"};
  for (const std::string& words : strangers_words) {
    open(first_);
    Program stranger(kOneAddress), neighbour(kAnotherAddress, stranger.port());
    stranger.listen();
    neighbour.listen();
    connect("1 127.0.0.1", std::to_string(stranger.port()) + " 127.0.0.1 127.0.0.2");
    let_pass(Seconds(0.5), Seconds(0));
    ASSERT_TRUE(stranger.accept());
    if (!words.empty()) stranger.say(words);
    let_pass(Seconds(0.5), Seconds(0));
    EXPECT_FALSE(first_->has_neighbour()) << words;
    stranger.hang_up();
    let_pass(Seconds(10), Seconds(10));
    EXPECT_EQ(first_->alarm(), "") << words;
    EXPECT_THAT(first_->gone(), IsEmpty()) << words;
    ASSERT_TRUE(neighbour.accept()) << words;
  }
}

TEST_F(Ring, WhoAcceptsButSaysNothingIsGivenUp) {
  Program stranger(kOneAddress), neighbour(kAnotherAddress, stranger.port());
  stranger.listen();
  neighbour.listen();
  connect("1 127.0.0.1", std::to_string(stranger.port()) + " 127.0.0.1 127.0.0.2");
  let_pass(Seconds(6), Seconds(0));
  ASSERT_TRUE(neighbour.accept());
  neighbour.say("beat\n" + kAnswerOfSecond);
  let_pass(Seconds(0.5), Seconds(0));
  EXPECT_TRUE(first_->has_neighbour());
}

TEST_F(Ring, ANeighbourThatWasHeldAtTheStartIsReachedLaterAndMissesNobody) {
  const std::string nowhere = "1 127.0.0.1";
  connect(nowhere, second_port_ + " 127.0.0.1");
  let_pass(Seconds(30), Seconds(0));
  EXPECT_FALSE(first_->has_neighbour());
  for (int i = 0; i < 40; ++i) exchange_both(Seconds(0.5), Seconds(100));
  EXPECT_TRUE(first_->has_neighbour());
  EXPECT_TRUE(second_->has_neighbour());
  for (const auto* each : {first_.get(), second_.get()}) {
    EXPECT_EQ(each->alarm(), "");
    EXPECT_THAT(each->gone(), IsEmpty());
  }
}

TEST(RingOfManyNodes, AnAlarmGoesAroundBothWays) {
  constexpr int kNodes = 9;
  std::vector<std::unique_ptr<NodeRing>> rings(kNodes);
  std::map<int, std::string> contacts;
  for (int node = 0; node < kNodes; ++node) {
    const std::string contact = NodeRing::open(rings[static_cast<std::size_t>(node)], /*is_leader=*/true, "launch-1");
    contacts[node] = contact.substr(0, contact.find(' ')) + " 127.0.0.1";
  }
  for (int node = 0; node < kNodes; ++node) rings[static_cast<std::size_t>(node)]->connect(node, contacts);
  const auto look = [&] {  // as all leaders' watchdogs at once
    std::vector<NodeRing*> alarmed;
    for (const auto& ring : rings) {
      if (!ring->alarm().empty()) alarmed.push_back(ring.get());
    }
    for (NodeRing* ring : alarmed) ring->send_alarm(ring->alarm());
    std::this_thread::sleep_for(kLoopback);
    for (const auto& ring : rings) ring->exchange(Seconds(0.1), Seconds(0), kPatience);
  };
  for (int i = 0; i < 20; ++i) look();
  rings[0]->send_alarm("rank 0 waits");
  for (int i = 0; i < kNodes / 2; ++i) look();
  for (int node = 1; node < kNodes; ++node) EXPECT_EQ(rings[static_cast<std::size_t>(node)]->alarm(), "rank 0 waits") << node;
}

// Half of the nodes, a look of 0.1 s at each: who waits for a report waits for the last of them.
TEST(RingOfManyNodes, LimitsGrowWithTheWayOfAnAlarm) {
  for (const int nodes : {1, 2, 200, 2000}) EXPECT_GE(limit_for(Seconds(1), nodes, nodes), Seconds(1 + 0.05 * nodes)) << nodes;
  EXPECT_LT(limit_for(Seconds(1), 4, 2), Seconds(1.2));
}

}  // namespace
}  // namespace mica::detail
