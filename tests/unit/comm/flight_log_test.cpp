// SPDX-License-Identifier: Apache-2.0
#include "mica/comm/flight_log.hpp"

#include <thread>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mica/comm/flight_recorder.hpp"
#include "mica/comm/hang_record.hpp"
#include "mica/core/steady_ns.hpp"

namespace mica {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

/// This process has a log for the time of a test.
class Log : public ::testing::Test {
 protected:
  Log() { FlightLog::set_of_process(log_); }
  ~Log() override { FlightLog::set_of_process(nullptr); }
  [[nodiscard]] HangRecord record() const { return record_of(*log_, steady_ns()); }

  std::shared_ptr<FlightLog> log_ = FlightLog::make_private(16, 4, 8);
};

TEST_F(Log, GroupsShareItsRing) {
  FlightRecorder a("a"), b("b");
  a.publish({0, 3});
  b.publish({0, 1, 2});
  for (int i = 0; i < 3; ++i) {
    const auto sequence = a.enqueue(Collective::all_gather, "h." + std::to_string(i), 100 + i);
    a.start(sequence);
    if (i < 2) a.end(sequence, true);
  }
  EXPECT_EQ(b.enqueue(Collective::barrier, "", 0), 1);
  const HangRecord read = record();
  ASSERT_EQ(read.groups.size(), 2u);
  EXPECT_EQ(read.groups[0].name, "a");
  EXPECT_EQ(read.groups[0].members, "0,3");
  EXPECT_EQ(read.groups[0].entered, 3);
  EXPECT_EQ(read.groups[0].ended, 2);
  EXPECT_TRUE(read.groups[0].is_waiting());
  EXPECT_FALSE(read.groups[1].is_waiting());
  ASSERT_EQ(read.events.size(), 4u);
  EXPECT_EQ(read.events[2].label, "h.2");
  EXPECT_EQ(read.events[2].bytes, 102);
  EXPECT_EQ(read.events[2].state, "started");
  EXPECT_EQ(read.events[3].group, 1u);
  EXPECT_EQ(a.entries().size(), 3u);
  EXPECT_EQ(b.entries().size(), 1u);
}

TEST_F(Log, APositionOutlivesItsEvents) {
  FlightRecorder slow("slow"), busy("busy");
  slow.publish({0, 1});
  busy.publish({0, 1});
  slow.start(slow.enqueue(Collective::all_reduce, "norm", 4));
  for (int i = 0; i < 40; ++i) {
    const auto sequence = busy.enqueue(Collective::all_gather, "x", 1);
    busy.start(sequence);
    busy.end(sequence, true);
  }
  const HangRecord read = record();
  EXPECT_EQ(read.events.size(), 16u);
  EXPECT_EQ(read.events.back().sequence, 40);
  EXPECT_TRUE(read.groups[0].is_waiting());
  EXPECT_EQ(read.groups[0].entered, 1);
}

TEST_F(Log, GroupsOfOneNameAndMembersAreNumbered) {
  FlightRecorder first("g"), second("g"), other("g");
  first.publish({0, 1});
  second.publish({0, 1});
  other.publish({0, 2});
  for (FlightRecorder* each : {&first, &second, &other}) each->enqueue(Collective::barrier, "", 0);
  const HangRecord read = record();
  ASSERT_EQ(read.groups.size(), 3u);
  EXPECT_EQ(read.groups[1].instance, 1);
  EXPECT_EQ(read.groups[2].instance, 0);
}

TEST_F(Log, AGroupThatHasEndedIsReadUntilItsPlaceIsNeeded) {
  for (int i = 0; i < 10; ++i) {
    FlightRecorder group("g");
    group.publish({0, 1});
    EXPECT_EQ(group.members(), (std::vector<int>{0, 1}));
    group.enqueue(Collective::barrier, std::to_string(i), 0);
    EXPECT_EQ(group.entries().size(), 1u);  // not those of the one that was there before
  }
  const HangRecord read = record();
  EXPECT_EQ(read.groups.size(), 4u);
  ASSERT_EQ(read.events.size(), 4u);
  EXPECT_EQ(read.events.back().label, "9");
  for (int i = 0; i < 10; ++i) FlightRecorder("unused").publish({0, 1});
}

TEST_F(Log, WhereAllPlacesAreTakenAGroupKeepsItsOwnLogAndOneWarningIsPrinted) {
  std::vector<std::unique_ptr<FlightRecorder>> groups;
  ::testing::internal::CaptureStderr();
  for (int i = 0; i < 6; ++i) {
    groups.push_back(std::make_unique<FlightRecorder>(fmt::format("g{}", i)));
    groups.back()->publish({0});
    groups.back()->enqueue(Collective::barrier, "", 0);
  }
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("group 'g4' is not watched"), HasSubstr("room for 4 groups"), Not(HasSubstr("g5"))));
  EXPECT_EQ(record().groups.size(), 4u);
  EXPECT_EQ(groups.back()->entries().size(), 1u);
}

// NCCL's watch tells of ends only: what is enqueued first is taken as entered.
TEST_F(Log, WhereStartsAreNotSeenTheFirstOneIsEntered) {
  FlightRecorder group("g");
  group.publish({0, 1});
  group.enqueue(Collective::barrier, "", 0);
  group.enqueue(Collective::barrier, "", 0);
  EXPECT_FALSE(record().groups[0].is_waiting());
  group.end(1, true);
  EXPECT_TRUE(record().groups[0].is_waiting());
  EXPECT_EQ(record().groups[0].entered, 2);
}

// As the watchdogs of a node do while ranks go on.
TEST_F(Log, ReadersSeeWholeEvents) {
  FlightRecorder group("g");
  group.publish({0, 1});
  const std::jthread writer([&](const std::stop_token& stop) {
    for (std::int64_t i = 1; !stop.stop_requested(); ++i) group.enqueue(Collective::all_gather, std::to_string(i), i);
  });
  for (int i = 0; i < 200; ++i) {
    for (const HangRecord::Event& e : record().events) {
      EXPECT_EQ(e.label, std::to_string(e.sequence));
      EXPECT_EQ(e.bytes, e.sequence);
    }
  }
}

}  // namespace
}  // namespace mica
