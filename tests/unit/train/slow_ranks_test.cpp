// SPDX-License-Identifier: Apache-2.0
#include "mica/train/slow_ranks.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace mica::train {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// Steps of 100 ms, of which each rank waits so long.
std::vector<RankFigures> waiting(const std::vector<double>& wait_ms) {
  std::vector<RankFigures> times;
  for (const double wait : wait_ms) times.push_back({.step_ms = 100, .wait_ms = wait, .data_ms = 1});
  return times;
}

TEST(SlowRanks, TheOneThatTheOthersWaitForIsNamedOnce) {
  SlowRanks slow({"a", "a", "b", "b"});
  const auto times = waiting({40, 41, 2, 39});
  EXPECT_THAT(slow.note(10, times), IsEmpty());
  EXPECT_THAT(slow.note(10, times),
              ElementsAre("rank 2 (b) is 1.6 times as slow as the median rank in the last 20 steps: computing, 97.0 ms "
                          "against a median of 59.0 ms; it waits for others 2.0 ms of a step of 100.0 ms, the median rank 39.0 ms"));
  EXPECT_THAT(slow.note(10, times), IsEmpty());
  EXPECT_THAT(slow.note(10, waiting({40, 41, 40, 39})), IsEmpty());
  EXPECT_THAT(slow.note(20, times), ElementsAre(HasSubstr("rank 2 (b)")));
}

TEST(SlowRanks, ItIsSlowInARow) {
  SlowRanks slow({"a", "a", "a"});
  for (int i = 0; i < 5; ++i) {
    EXPECT_THAT(slow.note(15, waiting({2, 40, 40})), IsEmpty());
    EXPECT_THAT(slow.note(5, waiting({40, 40, 40})), IsEmpty());
  }
}

TEST(SlowRanks, OneOfTwoIsNamed) {
  SlowRanks slow({"a", "b"});
  EXPECT_THAT(slow.note(20, waiting({0, 24})), ElementsAre(HasSubstr("rank 0 (a) is 1.3 times")));
}

TEST(SlowRanks, BelowTheRatioNobodyIs) {
  SlowRanks slow({"a", "b"});
  EXPECT_THAT(slow.note(20, waiting({0, 22})), IsEmpty());
}

// Where nearly all of a step is communication, differences between the rests say nothing.
TEST(SlowRanks, WhatDoesNotMatterToTheStepIsNotTold) {
  SlowRanks slow({"a", "b"});
  EXPECT_THAT(slow.note(20, waiting({84, 94})), IsEmpty());
}

TEST(SlowRanks, WhatDiffersIsNamed) {
  auto times = waiting({40, 40, 2});
  times[2].data_ms = 39;
  EXPECT_THAT(SlowRanks({"a", "a", "a"}).note(20, times), ElementsAre(HasSubstr(": reading data, 39.0 ms against a median of 1.0 ms;")));
  times[2].data_ms = 1;
  times[2].saving = 0.9;
  EXPECT_THAT(SlowRanks({"a", "a", "a"}).note(20, times), ElementsAre(HasSubstr("while it writes a checkpoint")));
  times[0].saving = times[1].saving = 0.9;
  EXPECT_THAT(SlowRanks({"a", "a", "a"}).note(20, times), ElementsAre(::testing::Not(HasSubstr("checkpoint"))));
}

}  // namespace
}  // namespace mica::train
