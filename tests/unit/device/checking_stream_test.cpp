// SPDX-License-Identifier: Apache-2.0
#include "testing/checking_stream.hpp"

#include <array>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mica/device/pool.hpp"

#include "testing/disturbed_stream.hpp"

namespace mica {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

void nothing() {}

class CheckerTest : public ::testing::TestWithParam<StreamMode> {
 protected:
  std::unique_ptr<Stream> make(const char* name) { return checker.wrap(make_cpu_stream(name, GetParam())); }
  [[nodiscard]] std::size_t num_violations() const { return checker.violations().size(); }

  std::unique_ptr<Pool> pool = make_cpu_pool();  // outlives the streams
  HappensBeforeChecker checker;
  std::unique_ptr<Stream> a = make("a");
  std::unique_ptr<Stream> b = make("b");
  std::array<char, 256> memory{};
  char* const m = memory.data();
};
INSTANTIATE_TEST_SUITE_P(Modes, CheckerTest, ::testing::Values(StreamMode::inlined, StreamMode::threaded),
                         [](const auto& info) { return info.param == StreamMode::inlined ? "inlined" : "threaded"; });

TEST_P(CheckerTest, OneStreamIsAlwaysOrdered) {
  a->submit("w", {writes(m, 64)}, nothing);
  a->submit("rw", {reads(m, 64), writes(m, 64)}, nothing);
  a->submit("r", {reads(m, 32)}, nothing);
  a->submit("w", {writes(m + 16, 100)}, nothing);
  EXPECT_EQ(num_violations(), 0U);
}

TEST_P(CheckerTest, FindsEveryKindOfConflict) {
  a->submit("fill", {writes(m, 64)}, nothing);
  b->submit("use", {reads(m + 60, 64)}, nothing);
  ASSERT_EQ(num_violations(), 1U);
  EXPECT_THAT(checker.violations()[0].text, AllOf(HasSubstr("b:use reads ["), HasSubstr(",+64)"), HasSubstr("a:fill may still write it")));
  b->submit("overwrite", {writes(m, 8)}, nothing);
  ASSERT_EQ(num_violations(), 2U);
  EXPECT_THAT(checker.violations()[1].text, AllOf(HasSubstr("b:overwrite writes"), HasSubstr("a:fill may still write")));
  a->submit("back", {writes(m + 100, 8)}, nothing);
  ASSERT_EQ(num_violations(), 3U);
  EXPECT_THAT(checker.violations()[2].text, AllOf(HasSubstr("a:back writes"), HasSubstr("b:use may still read it")));
}

TEST_P(CheckerTest, ReadersDoNotConflict) {
  a->submit("r", {reads(m, 64)}, nothing);
  b->submit("r", {reads(m, 64)}, nothing);
  EXPECT_EQ(num_violations(), 0U);
}

TEST_P(CheckerTest, BorderingRangesDoNotConflict) {
  a->submit("w", {writes(m, 64)}, nothing);
  b->submit("w", {writes(m + 64, 64)}, nothing);
  b->submit("w", {writes(m + 128, 1)}, nothing);
  a->submit("w", {writes(m + 129, 1)}, nothing);
  EXPECT_EQ(num_violations(), 0U);
}

TEST_P(CheckerTest, AWaitOrders) {
  for (int round = 0; round < 3; ++round) {
    a->submit("w", {writes(m, 64)}, nothing);
    b->wait(a->record());
    b->submit("rw", {reads(m, 32), writes(m + 32, 32)}, nothing);
    a->wait(b->record());
  }
  EXPECT_EQ(num_violations(), 0U);
}

TEST_P(CheckerTest, AnEventRecordedTooEarlyDoesNotOrder) {
  const Event before = a->record();
  a->submit("w", {writes(m, 64)}, nothing);
  b->wait(before);
  b->wait(Event());
  b->submit("r", {reads(m, 64)}, nothing);
  EXPECT_EQ(num_violations(), 1U);
}

TEST_P(CheckerTest, AWaitAfterTheTaskDoesNotOrder) {
  a->submit("w", {writes(m, 64)}, nothing);
  const Event done = a->record();
  b->submit("r", {reads(m, 64)}, nothing);
  b->wait(done);
  EXPECT_EQ(num_violations(), 1U);
}

TEST_P(CheckerTest, AWaitOrdersOneWayOnly) {
  a->submit("r", {reads(m, 64)}, nothing);
  b->wait(a->record());
  b->submit("w", {writes(m, 64)}, nothing);
  a->submit("r", {reads(m, 64)}, nothing);
  EXPECT_EQ(num_violations(), 1U);
}

TEST_P(CheckerTest, OrderIsTransitive) {
  const auto c = make("c");
  a->submit("w", {writes(m, 64)}, nothing);
  b->wait(a->record());
  c->wait(b->record());  // b ran no task in between
  c->submit("w", {writes(m, 64)}, nothing);
  EXPECT_EQ(num_violations(), 0U);
}

TEST_P(CheckerTest, EveryReaderMustBeWaitedFor) {
  const auto c = make("c");
  a->submit("r", {reads(m, 64)}, nothing);
  b->submit("r", {reads(m + 8, 8)}, nothing);
  c->wait(a->record());
  c->submit("w", {writes(m, 64)}, nothing);
  ASSERT_EQ(num_violations(), 1U);
  EXPECT_THAT(checker.violations()[0].text, HasSubstr("while b:r may still read"));
}

TEST_P(CheckerTest, ReportsAConflictOncePerAccess) {
  for (int i = 0; i < 8; ++i) a->submit("r", {reads(m + 8 * i, 8)}, nothing);
  b->submit("w", {writes(m, 64)}, nothing);
  EXPECT_EQ(num_violations(), 1U);
  b->submit("w", {writes(m, 64)}, nothing);
  EXPECT_EQ(num_violations(), 1U) << "the racing write is the last one now";
}

TEST_P(CheckerTest, PartsOfARangeKeepTheirOwnHistory) {
  a->submit("w", {writes(m, 90)}, nothing);
  b->wait(a->record());
  a->submit("w", {writes(m + 30, 30)}, nothing);
  b->submit("r", {reads(m, 30)}, nothing);
  b->submit("r", {reads(m + 60, 30)}, nothing);
  EXPECT_EQ(num_violations(), 0U);
  b->submit("r", {reads(m + 59, 2)}, nothing);
  EXPECT_EQ(num_violations(), 1U);
}

TEST_P(CheckerTest, WhatAWriteLeavesOfARangeKeepsItsHistory) {
  const auto c = make("c");
  a->submit("w", {writes(m, 90)}, nothing);
  b->wait(a->record());
  b->submit("w", {writes(m + 30, 30)}, nothing);
  c->wait(b->record());
  c->submit("r", {reads(m, 90)}, nothing);
  EXPECT_EQ(num_violations(), 0U);
  const auto d = make("d");
  d->submit("low", {reads(m, 30)}, nothing);
  d->submit("middle", {reads(m + 30, 30)}, nothing);
  d->submit("high", {reads(m + 60, 30)}, nothing);
  ASSERT_EQ(num_violations(), 3U);
  EXPECT_THAT(checker.violations()[0].text, HasSubstr("a:w may still write"));
  EXPECT_THAT(checker.violations()[1].text, HasSubstr("b:w may still write"));
  EXPECT_THAT(checker.violations()[2].text, HasSubstr("a:w may still write"));
}

TEST_P(CheckerTest, TheLatestReadCounts) {
  a->submit("early", {reads(m, 8)}, nothing);
  b->wait(a->record());
  a->submit("late", {reads(m, 8)}, nothing);
  b->submit("w", {writes(m, 8)}, nothing);
  ASSERT_EQ(num_violations(), 1U);
  EXPECT_THAT(checker.violations()[0].text, HasSubstr("a:late may still read"));
}

TEST_P(CheckerTest, TheHostIsAStreamToo) {
  checker.host_access("prepare", writes(m, 64));
  a->submit("r", {reads(m, 64)}, nothing);  // ordered: the host enqueued it after the write
  checker.host_access("look", reads(m, 64));
  EXPECT_EQ(num_violations(), 0U);
  checker.host_access("overwrite", writes(m, 64));
  ASSERT_EQ(num_violations(), 1U);
  EXPECT_THAT(checker.violations()[0].text, HasSubstr("host:overwrite writes"));
}

TEST_P(CheckerTest, TheHostLearnsByWaiting) {
  a->submit("w", {writes(m, 8)}, nothing);
  a->synchronize();
  checker.host_access("r", reads(m, 8));
  a->submit("w", {writes(m, 8)}, nothing);
  a->record().wait_on_host();
  checker.host_access("r", reads(m, 8));
  a->submit("w", {writes(m, 8)}, nothing);
  checker.host_joined(a->record());
  checker.host_access("r", reads(m, 8));
  a->submit("w", {writes(m, 8)}, nothing);
  a->drain_and_clear_error();
  checker.host_access("r", reads(m, 8));
  a->submit("w", {writes(m, 8)}, nothing);
  a.reset();
  checker.host_access("r", reads(m, 8));
  b->submit("w", {writes(m, 8)}, nothing);  // knows what the host knows
  EXPECT_EQ(num_violations(), 0U);
}

TEST_P(CheckerTest, IgnoresAbsentMemory) {
  a->submit("w", {writes(nullptr, 64), writes(m, 0)}, nothing);
  b->submit("w", {writes(nullptr, 64), writes(m, 0)}, nothing);
  EXPECT_EQ(num_violations(), 0U);
}

TEST_P(CheckerTest, ForgottenMemoryStartsAnew) {
  a->submit("w", {writes(m, 64)}, nothing);
  checker.forget(m + 16, 16);
  checker.forget(nullptr, 5);
  b->submit("w", {writes(m + 16, 16)}, nothing);
  EXPECT_EQ(num_violations(), 0U);
  b->submit("w", {writes(m + 31, 2)}, nothing);
  EXPECT_EQ(num_violations(), 1U);
}

TEST_P(CheckerTest, ForwardsTasksAndErrors) {
  bool ran = false;
  a->submit("runs", {}, [&] { ran = true; });
  a->submit("fails", {}, [] { throw std::runtime_error("x"); });
  b->wait(a->record());
  EXPECT_THROW(b->synchronize(), std::runtime_error);
  EXPECT_THROW(a->record().wait_on_host(), std::runtime_error);
  EXPECT_TRUE(ran);
  const std::array<Stream*, 2> all{a.get(), b.get()};
  drain_and_clear_errors(all);
  EXPECT_NO_THROW(a->synchronize());
  EXPECT_EQ(a->name(), "a");
}

class CheckedPool : public CheckerTest {
 protected:
  /// One buffer after another in the same memory, on two streams; `c` also reads the first.
  void hand_over(Stream& first, Stream& second, Stream& c, bool tell) {
    void* data = nullptr;
    {
      Buffer buffer = pool->allocate(1 << 20, MemoryRole::activation, first);
      data = buffer.data();
      first.submit("fill", {writes(data, 1 << 20)}, nothing);
      c.wait(first.record());
      c.submit("foreign", {reads(data, 1 << 20)}, nothing);
      if (tell) buffer.used_until(c.record());
    }
    const Buffer buffer = pool->allocate(1 << 20, MemoryRole::activation, second);
    ASSERT_EQ(buffer.data(), data);
    second.submit("next", {writes(data, 1 << 20)}, nothing);
  }
};
INSTANTIATE_TEST_SUITE_P(Modes, CheckedPool, ::testing::Values(StreamMode::inlined, StreamMode::threaded),
                         [](const auto& info) { return info.param == StreamMode::inlined ? "inlined" : "threaded"; });

TEST_P(CheckedPool, ReuseIsOrderedByThePool) {
  const auto c = make("c");
  hand_over(*a, *b, *c, true);
  hand_over(*a, *a, *c, true);
  pool->poison(true);
  hand_over(*b, *a, *c, true);
  EXPECT_EQ(num_violations(), 0U) << checker.violations()[0].text;
}

TEST_P(CheckedPool, OfSeveralUsesByOneStreamTheLastCounts) {
  const auto c = make("c");
  const auto helper = make("helper");
  void* data = nullptr;
  {
    Buffer buffer = pool->allocate(1 << 20, MemoryRole::activation, *a);
    data = buffer.data();
    c->submit("unrelated", {}, nothing);
    buffer.used_until(c->record());
    helper->submit("use", {writes(data, 64)}, nothing);
    c->wait(helper->record());  // c itself runs nothing more: its event knows of the helper all the same
    buffer.used_until(c->record());
  }
  const Buffer buffer = pool->allocate(1 << 20, MemoryRole::activation, *b);
  ASSERT_EQ(buffer.data(), data);
  b->submit("next", {writes(data, 64)}, nothing);
  EXPECT_EQ(num_violations(), 0U);
}

TEST_P(CheckedPool, AForeignUseThatNobodyToldOfIsFound) {
  const auto c = make("c");
  hand_over(*a, *a, *c, false);
  ASSERT_EQ(num_violations(), 1U);
  EXPECT_THAT(checker.violations()[0].text, AllOf(HasSubstr("a:next writes"), HasSubstr("c:foreign may still read")));
}

TEST_P(CheckedPool, AReuseWithoutItsWaitIsFound) {
  std::string place;
  for (bool dry : {true, false}) {
    HappensBeforeChecker fresh;
    WaitDropper dropper;
    if (!dry) dropper.drop_site(place);
    const auto first = drop_waits(fresh.wrap(make_cpu_stream("first", GetParam())), dropper);
    const auto second = drop_waits(fresh.wrap(make_cpu_stream("second", GetParam())), dropper);
    hand_over(*first, *second, *first, true);
    for (const WaitDropper::Site& site : dropper.sites()) {
      if (site.place.starts_with("pool.cpp:")) place = site.place;
    }
    ASSERT_FALSE(place.empty()) << "the pool must have waited";
    EXPECT_EQ(fresh.violations().empty(), dry);
  }
}

TEST(VectorClock, JoinsToTheLaterOfEach) {
  VectorClock x;
  VectorClock y;
  x.set(0, 5);
  x.set(2, 1);
  y.set(2, 7);
  y.tick(3);
  x.join(y);
  EXPECT_EQ(x.of(0), 5U);
  EXPECT_EQ(x.of(1), 0U);
  EXPECT_EQ(x.of(2), 7U);
  EXPECT_EQ(x.of(3), 1U);
  EXPECT_EQ(x.of(99), 0U);
}

}  // namespace
}  // namespace mica
