// SPDX-License-Identifier: Apache-2.0
#include "mica/device/stream.hpp"

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <numeric>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <sys/resource.h>

#include "gate.hpp"

namespace mica {
namespace {

using namespace std::chrono_literals;
using test::Gate;

struct TaskFailed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

std::string mode_name(const ::testing::TestParamInfo<StreamMode>& info) {
  return info.param == StreamMode::inlined ? "inlined" : "threaded";
}

class StreamTest : public ::testing::TestWithParam<StreamMode> {
 protected:
  std::unique_ptr<Stream> a = make_cpu_stream("a", GetParam());
  std::unique_ptr<Stream> b = make_cpu_stream("b", GetParam());
};
INSTANTIATE_TEST_SUITE_P(Modes, StreamTest, ::testing::Values(StreamMode::inlined, StreamMode::threaded), mode_name);

TEST_P(StreamTest, RunsTasksInOrder) {
  std::vector<int> order;
  for (int i = 0; i < 1000; ++i) a->submit("push", {}, [&order, i] { order.push_back(i); });
  a->synchronize();
  std::vector<int> expected(1000);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(order, expected);
}

TEST_P(StreamTest, KnowsItsNameAndDevice) {
  EXPECT_EQ(a->name(), "a");
  EXPECT_EQ(a->device(), DeviceKind::cpu);
}

TEST_P(StreamTest, WaitOrdersTwoStreams) {
  int value = 0;  // plain: ThreadSanitizer sees whether the wait orders the accesses
  int seen = -1;
  for (int round = 0; round < 200; ++round) {
    a->submit("write", {}, [&value, round] { value = round; });
    b->wait(a->record());
    b->submit("read", {}, [&value, &seen] { seen = value; });
    a->wait(b->record());
  }
  b->synchronize();
  EXPECT_EQ(seen, 199);
}

TEST_P(StreamTest, EventsOfAnIdleStreamAreComplete) {
  EXPECT_TRUE(Event().is_complete());
  Event().wait_on_host();
  const Event fresh = a->record();
  EXPECT_TRUE(fresh.is_complete());
  fresh.wait_on_host();
  a->submit("nothing", {}, [] {});
  a->synchronize();
  EXPECT_TRUE(a->record().is_complete());
  a->wait(Event());
  a->wait(a->record());  // its own: nothing to wait for
  a->synchronize();
}

TEST_P(StreamTest, TheFirstErrorIsSticky) {
  bool ran_after = false;
  a->submit("ok", {}, [] {});
  const Event before = a->record();
  a->submit("fails", {}, [] { throw TaskFailed("first"); });
  a->submit("skipped", {}, [&] { ran_after = true; });
  a->submit("skipped", {}, [] { throw TaskFailed("second"); });
  const Event after = a->record();
  for (int i = 0; i < 2; ++i) {
    try {
      a->synchronize();
      FAIL() << "no error";
    } catch (const TaskFailed& error) {
      EXPECT_STREQ(error.what(), "first");
    }
  }
  EXPECT_THROW(after.wait_on_host(), TaskFailed);
  EXPECT_NO_THROW(before.wait_on_host());
  EXPECT_TRUE(after.is_complete());
  EXPECT_FALSE(ran_after);
}

TEST_P(StreamTest, WaitingForAFailedStreamFails) {
  bool ran = false;
  a->submit("fails", {}, [] { throw TaskFailed("of a"); });
  b->submit("earlier work is not concerned", {}, [] {});
  const Event before = b->record();
  b->wait(a->record());
  b->submit("skipped", {}, [&] { ran = true; });
  try {
    b->synchronize();
    FAIL() << "no error";
  } catch (const TaskFailed& error) {
    EXPECT_STREQ(error.what(), "of a");
  }
  EXPECT_NO_THROW(before.wait_on_host());
  EXPECT_FALSE(ran);
}

TEST_P(StreamTest, AFailureThatComesInByAWaitDoesNotReplaceTheFirst) {
  a->submit("fails", {}, [] { throw TaskFailed("of a"); });
  b->submit("fails", {}, [] { throw TaskFailed("of b"); });
  b->wait(a->record());
  try {
    b->synchronize();
    FAIL() << "no error";
  } catch (const TaskFailed& error) {
    EXPECT_STREQ(error.what(), "of b");
  }
}

TEST_P(StreamTest, ClearedErrorsAreForgottenByOldEventsToo) {
  a->submit("fails", {}, [] { throw TaskFailed("x"); });
  const Event failed = a->record();
  b->wait(failed);
  const Event followed = b->record();
  const std::array<Stream*, 2> all{a.get(), b.get()};
  drain_and_clear_errors(all);
  EXPECT_NO_THROW(failed.wait_on_host());
  EXPECT_NO_THROW(followed.wait_on_host());
  bool ran = false;
  b->wait(failed);
  b->submit("runs again", {}, [&] { ran = true; });
  EXPECT_NO_THROW(b->synchronize());
  EXPECT_NO_THROW(a->synchronize());
  EXPECT_TRUE(ran);
  a->submit("fails anew", {}, [] { throw TaskFailed("y"); });
  EXPECT_THROW(a->synchronize(), TaskFailed);
  EXPECT_NO_THROW(failed.wait_on_host()) << "the old event comes before the new failure";
}

TEST_P(StreamTest, ClearingOneStreamDoesNotLetItsFollowersRun) {
  for (int round = 0; round < 20; ++round) {
    bool ran = false;
    a->submit("fails late", {}, [] {
      std::this_thread::sleep_for(1ms);
      throw TaskFailed("x");
    });
    b->wait(a->record());
    b->submit("on half-made data", {}, [&] { ran = true; });
    const std::array<Stream*, 2> all{a.get(), b.get()};
    drain_and_clear_errors(all);
    EXPECT_FALSE(ran);
    EXPECT_NO_THROW(b->synchronize());
  }
}

TEST_P(StreamTest, WhatATaskHoldsIsGoneOnceItIsComplete) {
  auto held = std::make_shared<int>(1);
  a->submit("hold", {}, [held] { std::this_thread::sleep_for(2ms); });
  a->submit("fails", {}, [held] { throw TaskFailed("x"); });
  a->submit("skipped", {}, [held] {});
  EXPECT_THROW(a->record().wait_on_host(), TaskFailed);
  EXPECT_EQ(held.use_count(), 1);
}

TEST_P(StreamTest, DestructionRunsWhatWasEnqueued) {
  int num_run = 0;
  for (int i = 0; i < 100; ++i) a->submit("count", {}, [&] { ++num_run; });
  a->submit("fails", {}, [] { throw TaskFailed("nobody asks"); });
  a.reset();
  EXPECT_EQ(num_run, 100);
}

TEST_P(StreamTest, EventsOutliveTheirStream) {
  a->submit("nothing", {}, [] {});
  const Event event = a->record();
  a.reset();
  EXPECT_TRUE(event.is_complete());
  b->wait(event);
  EXPECT_NO_THROW(b->synchronize());
}

TEST(InlineStream, RunsAtEnqueueAndRecordsNullEvents) {
  const auto s = make_cpu_stream("s", StreamMode::inlined);
  bool ran = false;
  s->submit("now", {}, [&] { ran = true; });
  EXPECT_TRUE(ran);
  EXPECT_EQ(s->record().state(), nullptr);
}

TEST(InlineStream, WaitingForAThreadedStreamBlocksTheHost) {
  const auto threaded = make_cpu_stream("threaded", StreamMode::threaded);
  const auto inlined = make_cpu_stream("inline", StreamMode::inlined);
  int value = 0;
  threaded->submit("slow", {}, [&] {
    std::this_thread::sleep_for(10ms);
    value = 1;
  });
  inlined->wait(threaded->record());
  EXPECT_EQ(value, 1);
}

TEST(ThreadedStream, DoesNotBlockTheHost) {
  const auto a = make_cpu_stream("a", StreamMode::threaded);
  const auto b = make_cpu_stream("b", StreamMode::threaded);
  Gate gate;
  a->submit("held", {}, [&] { gate.pass(); });
  const Event event = a->record();
  EXPECT_FALSE(event.is_complete());
  b->wait(event);
  b->submit("after", {}, [] {});
  EXPECT_FALSE(b->record().is_complete());
  gate.open();
  b->synchronize();
  EXPECT_TRUE(event.is_complete());
}

TEST(ThreadedStream, AnEventIsAPointNotTheEnd) {
  const auto a = make_cpu_stream("a", StreamMode::threaded);
  const auto b = make_cpu_stream("b", StreamMode::threaded);
  Gate gate;
  a->submit("first", {}, [] {});
  const Event first = a->record();
  a->submit("held", {}, [&] { gate.pass(); });
  b->wait(first);
  b->submit("free to run", {}, [] {});
  b->synchronize();  // would hang if b waited for all of a
  first.wait_on_host();
  gate.open();
  a->synchronize();
}

TEST(ThreadedStream, WhatATaskHeldIsGoneWhenItIsComplete) {
  const auto a = make_cpu_stream("a", StreamMode::threaded);
  Gate begin, end;
  auto held = std::make_shared<int>(1);
  const std::weak_ptr<int> seen = held;
  a->submit("so that the next ones are taken together", {}, [&] { begin.pass(); });
  a->submit("holds", {}, [held = std::move(held)] {});
  const Event over = a->record();
  a->submit("runs on", {}, [&] { end.pass(); });
  begin.open();
  over.wait_on_host();
  EXPECT_TRUE(seen.expired());
  end.open();
  a->synchronize();
}

TEST(ThreadedStream, StreamsAreNotOrderedByThemselves) {
  const auto a = make_cpu_stream("a", StreamMode::threaded);
  const auto b = make_cpu_stream("b", StreamMode::threaded);
  Gate gate;
  a->submit("needs b's later task", {}, [&] { gate.pass(); });
  b->submit("opens", {}, [&] { gate.open(); });
  a->synchronize();
}

TEST(ThreadedStream, ManyHostsMayWaitForOneEvent) {
  const auto a = make_cpu_stream("a", StreamMode::threaded);
  for (int round = 0; round < 50; ++round) {
    Gate gate;
    a->submit("held", {}, [&] { gate.pass(); });
    const Event early = a->record();
    a->submit("more", {}, [] {});
    const Event late = a->record();
    std::atomic<int> num_woken{0};
    std::vector<std::thread> waiters;
    for (int i = 0; i < 4; ++i) {
      waiters.emplace_back([&, i] {
        (i % 2 == 0 ? early : late).wait_on_host();
        ++num_woken;
      });
    }
    gate.open();
    for (std::thread& waiter : waiters) waiter.join();
    EXPECT_EQ(num_woken.load(), 4);
  }
}

double cpu_ms() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto ms = [](const timeval& t) { return static_cast<double>(t.tv_sec) * 1e3 + static_cast<double>(t.tv_usec) * 1e-3; };
  return ms(usage.ru_utime) + ms(usage.ru_stime);
}

TEST(ThreadedStream, SleepsWhileIdleAndWhileWaiting) {
  std::vector<std::unique_ptr<Stream>> streams;
  for (int i = 0; i < 6; ++i) streams.push_back(make_cpu_stream("idle", StreamMode::threaded));
  for (const auto& stream : streams) {
    stream->submit("warm up", {}, [] {});
    stream->synchronize();
  }
  Gate gate;
  streams[0]->submit("held", {}, [&] { gate.pass(); });
  streams[1]->wait(streams[0]->record());
  std::thread host([event = streams[1]->record()] { event.wait_on_host(); });
  std::this_thread::sleep_for(20ms);
  const double before = cpu_ms();
  std::this_thread::sleep_for(300ms);
  EXPECT_LT(cpu_ms() - before, 15.0) << "of 300 ms, in which all streams were idle or waited";
  gate.open();
  host.join();
}

TEST(ThreadedStream, WorkersCarryTheNameAndBlockSignals) {
  const auto s = make_cpu_stream("post_backward_of_unit_7", StreamMode::threaded);
  bool blocks_sigterm = false;
  bool blocks_sigsegv = true;
  s->submit("ask", {}, [&] {
    sigset_t blocked;
    pthread_sigmask(SIG_BLOCK, nullptr, &blocked);
    blocks_sigterm = sigismember(&blocked, SIGTERM) == 1;
    blocks_sigsegv = sigismember(&blocked, SIGSEGV) == 1;
  });
  s->synchronize();
  EXPECT_TRUE(blocks_sigterm);
  EXPECT_FALSE(blocks_sigsegv);
  sigset_t host;
  pthread_sigmask(SIG_BLOCK, nullptr, &host);
  EXPECT_FALSE(sigismember(&host, SIGTERM)) << "the host's own mask must come back";

  std::set<std::string> names;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::getline(std::ifstream(task.path() / "comm"), name);
    names.insert(name);
  }
  EXPECT_TRUE(names.count("post_backward_o")) << "15 characters of the stream's name";
}

}  // namespace
}  // namespace mica
