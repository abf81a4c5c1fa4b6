// SPDX-License-Identifier: Apache-2.0
#include "testing/disturbed_stream.hpp"

#include <array>
#include <atomic>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "gate.hpp"

namespace mica {
namespace {

using namespace std::chrono_literals;

/// Two producers write, a consumer adds both; each producer waits until its last value was used. The waits are needed.
struct Sums {
  WaitDropper* dropper;
  StreamMode mode = StreamMode::threaded;
  std::array<bool, 2> held{};  // producers that a gate keeps back until the consumer is done, if nothing stops that one
  std::chrono::milliseconds patience{10'000};

  std::vector<int> run(int rounds) {
    test::Gate gate;
    std::vector<std::unique_ptr<Stream>> streams;
    for (const char* name : {"one", "two", "sum"}) streams.push_back(drop_waits(make_cpu_stream(name, mode), *dropper));
    std::array<std::atomic<int>, 2> values{};
    std::vector<int> sums;
    for (int round = 1; round <= rounds; ++round) {
      for (std::size_t i : {0U, 1U}) {
        streams[i]->wait(streams[2]->record());
        streams[i]->submit("produce", {}, [&, i, round] {
          if (held[i]) gate.pass();
          values[i] = round;
        });
        streams[2]->wait(streams[i]->record());
      }
      streams[2]->submit("add", {}, [&] { sums.push_back(values[0] + values[1]); });
    }
    if (held[0] || held[1]) {
      streams[2]->submit("open", {}, [&] { gate.open(); });
      const Event opened = streams[2]->record();
      const auto deadline = std::chrono::steady_clock::now() + patience;
      while (!opened.is_complete() && std::chrono::steady_clock::now() < deadline) std::this_thread::sleep_for(1ms);
      gate.open();  // where the waits are intact the consumer cannot
    }
    for (const auto& stream : streams) stream->synchronize();
    return sums;
  }
};

TEST(WaitDropper, CountsCallsAndPlaces) {
  WaitDropper dropper;
  EXPECT_EQ((Sums{&dropper}.run(4)), (std::vector<int>{2, 4, 6, 8}));
  EXPECT_EQ(dropper.num_waits(), 16);
  EXPECT_EQ(dropper.num_dropped(), 0);
  ASSERT_EQ(dropper.sites().size(), 2U);
  EXPECT_EQ(dropper.sites()[0].num_waits, 8);
  EXPECT_EQ(dropper.sites()[1].num_waits, 8);
  EXPECT_TRUE(dropper.sites()[1].place.starts_with("disturbed_stream_test.cpp:")) << dropper.sites()[1].place;
}

TEST(WaitDropper, CountsTheSameInBothModes) {
  WaitDropper inlined;
  WaitDropper threaded;
  (void)Sums{&inlined, StreamMode::inlined}.run(5);
  (void)Sums{&threaded, StreamMode::threaded}.run(5);
  EXPECT_EQ(inlined.num_waits(), threaded.num_waits());
}

TEST(WaitDropper, WithItsWaitsTheConsumerComesLast) {
  WaitDropper dropper;
  EXPECT_EQ((Sums{&dropper, StreamMode::threaded, {true, true}, 20ms}.run(1)), std::vector<int>{2});
}

TEST(WaitDropper, ADroppedCallShowsInAThreadedRun) {
  for (std::size_t producer : {0U, 1U}) {
    WaitDropper dropper;
    dropper.drop_call(producer == 0 ? 1 : 3);
    Sums sums{&dropper, StreamMode::threaded, {}};
    sums.held[producer] = true;
    EXPECT_EQ(sums.run(1), std::vector<int>{1}) << "the consumer ran before producer " << producer;
    EXPECT_EQ(dropper.num_dropped(), 1);
  }
}

TEST(WaitDropper, ADroppedPlaceDropsAllItsCalls) {
  WaitDropper dry;
  (void)Sums{&dry}.run(1);
  WaitDropper dropper;
  dropper.drop_site(dry.sites()[1].place);
  EXPECT_EQ((Sums{&dropper, StreamMode::threaded, {true, true}}.run(1)), std::vector<int>{0});
  EXPECT_EQ(dropper.num_dropped(), 2);
}

TEST(DelayTasks, DelaysAndKeepsTheOrder) {
  for (StreamMode mode : {StreamMode::inlined, StreamMode::threaded}) {
    const auto s = delay_tasks(make_cpu_stream("s", mode), 3, 1000us);
    std::vector<int> order;
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < 60; ++i) s->submit("push", {}, [&order, i] { order.push_back(i); });
    s->synchronize();
    EXPECT_GE(std::chrono::steady_clock::now() - begin, 5ms) << "about 30 delays of 0.5 ms";
    ASSERT_EQ(order.size(), 60U);
    for (int i = 0; i < 60; ++i) EXPECT_EQ(order[static_cast<std::size_t>(i)], i);
  }
}

TEST(DelayTasks, ZeroIsNoDelay) {
  const auto s = delay_tasks(make_cpu_stream("s", StreamMode::threaded), 3, 0us);
  int num_run = 0;
  for (int i = 0; i < 10; ++i) s->submit("count", {}, [&] { ++num_run; });
  s->synchronize();
  EXPECT_EQ(num_run, 10);
}

}  // namespace
}  // namespace mica
