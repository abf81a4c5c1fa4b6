// SPDX-License-Identifier: Apache-2.0
// What ranks agree on between steps: clocks are given, none is read.
#include "mica/train/request.hpp"

#include <algorithm>

#include <gtest/gtest.h>

namespace mica::train {
namespace {

using namespace std::chrono_literals;

constexpr RequestPace::Clock::time_point kStart{1000h};

TEST(RequestOfClocks, TheLimitStopsInTimeAndMinutesSave) {
  TimeLimit limit(1.5, nullptr, {});
  limit.note_save(44s);  // 60 s are kept free
  EXPECT_EQ(request_of_clocks(limit, 30, 29min, 29min), Request::none);
  EXPECT_EQ(request_of_clocks(limit, 30, 30min, 30min), Request::save);
  EXPECT_EQ(request_of_clocks(limit, 30, 31min, 1min), Request::none) << "it was saved a minute ago";
  EXPECT_EQ(request_of_clocks(limit, 30, 88min + 59s, 30min), Request::save);
  EXPECT_EQ(request_of_clocks(limit, 30, 89min, 30min), Request::stop) << "which saves, too";
  EXPECT_EQ(request_of_clocks(limit, 30, 88min + 10s, 1min, 2), Request::stop) << "another save is under way";
}

TEST(RequestOfClocks, ZeroIsNoLimit) {
  EXPECT_EQ(request_of_clocks(TimeLimit(), 0, 10000h, 10000h), Request::none);
  EXPECT_EQ(request_of_clocks(TimeLimit(), 1, 10000h, 0s), Request::none);
  EXPECT_EQ(request_of_clocks(TimeLimit(1, nullptr, {}), 0, 0s, 10000h), Request::none);
}

/// After how many more steps the next agreement comes, when one step took this long.
std::int64_t steps_between(std::chrono::microseconds step_time) {
  RequestPace pace(0, kStart);
  const auto now = kStart + step_time;
  EXPECT_EQ(pace.agree(pace.encode(Request::none, 1, now), 1, now), Request::none);
  std::int64_t steps = 1;
  while (!pace.is_due(1 + steps)) ++steps;
  return steps;
}

TEST(RequestPace, AgreesAboutTenTimesASecond) {
  EXPECT_EQ(steps_between(1ms), 100);
  EXPECT_EQ(steps_between(30ms), 3);
  EXPECT_EQ(steps_between(100ms), 1);
  EXPECT_EQ(steps_between(1h), 1) << "after each step at the least often";
  EXPECT_EQ(steps_between(1us), 1000) << "at the most rare";
  EXPECT_EQ(steps_between(0us), 1000);
}

TEST(RequestPace, TheFirstStepOfALaunchIsFollowedByAnAgreement) {
  EXPECT_TRUE(RequestPace(0, kStart).is_due(1));
  EXPECT_FALSE(RequestPace(500, kStart).is_due(500));
  EXPECT_TRUE(RequestPace(500, kStart).is_due(501));
}

// The steps of earlier launches took no time in this one.
TEST(RequestPace, AResumedRunWithSlowStepsAgreesAfterEach) {
  RequestPace pace(100'000, kStart);
  const auto now = kStart + 10s;
  (void)pace.agree(pace.encode(Request::none, 100'001, now), 100'001, now);
  EXPECT_TRUE(pace.is_due(100'002));
}

TEST(RequestPace, TheTimeIsThatOfTheStepsSinceTheLastAgreement) {
  RequestPace pace(0, kStart);
  auto now = kStart + 1ms;
  (void)pace.agree(pace.encode(Request::none, 1, now), 1, now);
  ASSERT_TRUE(pace.is_due(101));
  now += 4s;  // 100 steps of 40 ms
  (void)pace.agree(pace.encode(Request::none, 101, now), 101, now);
  EXPECT_FALSE(pace.is_due(102));
  EXPECT_TRUE(pace.is_due(103));
}

// A step is followed by two agreements if it saves, and a background save takes next to no time.
TEST(RequestPace, AShortSaveDoesNotMakeStepsShort) {
  RequestPace pace(0, kStart);
  auto now = kStart + 1s;
  (void)pace.agree(pace.encode(Request::none, 1, now), 1, now);
  now += 1ms;
  (void)pace.agree(pace.encode(Request::none, 1, now), 1, now);
  EXPECT_TRUE(pace.is_due(2));
}

TEST(RequestPace, ALongSaveDoesNotMakeStepsLong) {
  RequestPace pace(0, kStart);
  auto now = kStart + 1ms;
  (void)pace.agree(pace.encode(Request::save, 1, now), 1, now);
  now += 20s;
  EXPECT_EQ(pace.agree(pace.encode(Request::stop, 1, now), 1, now), Request::stop);
  EXPECT_FALSE(pace.is_due(100));
  EXPECT_TRUE(pace.is_due(101));
}

TEST(RequestPace, TheMostUrgentRequestIsDoneByAllAndTheSlowestRankSetsThePace) {
  const RequestPace each(0, kStart);
  const std::int64_t slow_save = each.encode(Request::save, 1, kStart + 100s);
  const std::int64_t fast_stop = each.encode(Request::stop, 1, kStart + 1ms);
  const std::int64_t slow_look = each.encode(Request::look, 1, kStart + 50ms);
  RequestPace pace(0, kStart);
  EXPECT_EQ(pace.agree(std::max({slow_save, fast_stop, slow_look}), 1, kStart), Request::stop);
  EXPECT_EQ(pace.agree(std::max(slow_save, slow_look), 2, kStart), Request::look);
  EXPECT_EQ(pace.agree(std::max(each.encode(Request::none, 1, kStart + 1ms), each.encode(Request::none, 1, kStart + 50ms)), 3, kStart),
            Request::none);
  EXPECT_FALSE(pace.is_due(4));
  EXPECT_TRUE(pace.is_due(5)) << "steps of 50 ms";
}

}  // namespace
}  // namespace mica::train
