// SPDX-License-Identifier: Apache-2.0
// When a launch has to end, and how long before that its last save begins. Times are given, no clock is read.
#include "mica/train/time_limit.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mica/core/error.hpp"

namespace mica::train {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

const std::chrono::system_clock::time_point kNow{1'900'000'000s};  // 2030-03-17 17:46:40 UTC

TEST(TimeLimit, TheEarlierOfTheTwoCounts) {
  const TimeLimit none(0, nullptr, kNow);
  EXPECT_FALSE(none.is_set());
  EXPECT_FALSE(none.is_near(1e9s, 1));
  EXPECT_EQ(none.description(0s), "");
  const TimeLimit hours(1.5, nullptr, kNow);
  EXPECT_THAT(hours.description(0s), HasSubstr("(train.max_hours)"));
  EXPECT_EQ(hours.left(0s), 5400s);
  const TimeLimit slurm(1.5, "1900003600", kNow);
  EXPECT_EQ(slurm.left(600s), 3000s);
  EXPECT_EQ(slurm.description(0s), "must end by 2030-03-17 18:46:40 UTC, in 1 h 0 min (SLURM_JOB_END_TIME); saves and stops in time");
  EXPECT_THAT(slurm.description(70s), HasSubstr("18:46:40 UTC, in 58 min 50 s (")) << "the start took a while";
  EXPECT_THAT(slurm.description(4000s), HasSubstr(", in 0 s ("));
  EXPECT_THAT(TimeLimit(0.5, "1900003600", kNow).description(0s), HasSubstr("(train.max_hours)"));
  EXPECT_EQ(slurm.warning(), "");
}

TEST(TimeLimit, AnEndInThePastIsNotObeyedAndSaid) {
  for (const char* past : {"1900000000", "1899999999", "1"}) {
    const TimeLimit limit(0, past, kNow);
    EXPECT_FALSE(limit.is_set());
    EXPECT_THAT(limit.warning(), HasSubstr("SLURM_JOB_END_TIME is ignored")) << past;
    EXPECT_THAT(TimeLimit(2, past, kNow).description(0s), HasSubstr("(train.max_hours)"));
  }
}

TEST(TimeLimit, WhatIsNoTimeIsRefused) {
  for (const char* text : {"", "soon", "12x", "-5", "0", "99999999999999", "1e9"}) {
    try {
      (void)TimeLimit(0, text, kNow);
      ADD_FAILURE() << text;
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), HasSubstr(std::string("SLURM_JOB_END_TIME is '") + text + "', expected seconds since 1970"));
    }
  }
}

TEST(TimeLimit, AStepAndASaveFitBeforeTheEnd) {
  TimeLimit limit(1, nullptr, kNow);
  EXPECT_EQ(limit.reserve(1), 5s) << "the end of the job";
  limit.note_steps(4s);
  limit.note_steps(2s);
  limit.estimate_save(100s);
  EXPECT_EQ(limit.reserve(1), 1.25 * 104s + 5s);
  limit.note_save(20s);
  EXPECT_EQ(limit.reserve(1), 1.25 * 24s + 5s) << "measured, so that the estimate is over";
  limit.note_save(36s);
  limit.note_save(8s);
  EXPECT_EQ(limit.reserve(1), 1.25 * 40s + 5s) << "the longest";
  EXPECT_EQ(limit.reserve(2), 1.25 * 76s + 5s) << "one that is under way";
  EXPECT_FALSE(limit.is_near(3600s - 55.1s, 1));
  EXPECT_TRUE(limit.is_near(3600s - 55s, 1));
  EXPECT_TRUE(limit.is_near(4000s, 1));
  EXPECT_TRUE(limit.is_near(3600s - 56s, 2));
  EXPECT_EQ(limit.reason_to_stop(3600s - 54s, 1), "54 s left before the limit (train.max_hours), and a step and a save may take 55 s");
  EXPECT_EQ(limit.reason_to_stop(3601s, 2), "0 s left before the limit (train.max_hours), and a step and 2 saves may take 1 min 40 s");
}

}  // namespace
}  // namespace mica::train
