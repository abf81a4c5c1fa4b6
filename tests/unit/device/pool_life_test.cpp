// SPDX-License-Identifier: Apache-2.0
// Many allocations at random, in one order of the host's calls.
#include <atomic>
#include <memory>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "mica/device/pool.hpp"

#include "testing/disturbed_stream.hpp"

namespace mica {
namespace {

constexpr auto kActivation = MemoryRole::activation;

/// A random life of a pool on two streams; returns where each allocation lay, relative to the first.
std::vector<std::int64_t> random_life(Pool& pool, Stream& a, Stream& b, std::uint64_t seed, bool check_contents) {
  struct Live {
    Buffer buffer;
    Stream* stream;
    int tag;
  };
  std::mt19937_64 random(seed);
  std::vector<Live> live;
  std::vector<std::int64_t> placed;
  std::optional<std::uintptr_t> base;
  auto num_bad = std::make_shared<std::atomic<int>>(0);
  std::int64_t expected = 0;
  const auto check = [&](Live& l, Stream& on) {
    on.submit("check", {reads(l.buffer.data(), l.buffer.bytes())},
              [data = static_cast<int*>(l.buffer.data()), n = l.buffer.bytes() / 4, tag = l.tag, num_bad] {
                for (std::int64_t i = 0; i < n; i += 97) *num_bad += data[i] != tag;
              });
  };
  for (int step = 0; step < 1500; ++step) {
    if (live.empty() || random() % 100 < (step < 1200 ? 52 : 20)) {
      const std::int64_t bytes = 4 * static_cast<std::int64_t>(1 + random() % (random() % 4 == 0 ? 50'000 : 20'000));
      Stream& stream = random() % 2 == 0 ? a : b;
      Buffer buffer = pool.allocate(bytes, random() % 5 == 0 ? MemoryRole::optimizer : kActivation, stream);
      const auto address = reinterpret_cast<std::uintptr_t>(buffer.data());
      placed.push_back(static_cast<std::int64_t>(address - base.value_or(address)));
      base = base.value_or(address);
      expected += bytes;
      stream.submit("fill", {writes(buffer.data(), bytes)}, [data = static_cast<int*>(buffer.data()), bytes, step] {
        for (std::int64_t i = 0; i < bytes / 4; ++i) data[i] = step;
      });
      live.push_back({std::move(buffer), &stream, step});
    } else {
      const std::size_t victim = random() % live.size();
      Live& l = live[victim];
      if (check_contents && random() % 3 == 0) {
        Stream& foreign = l.stream == &a ? b : a;
        foreign.wait(l.stream->record());
        check(l, foreign);
        l.buffer.used_until(foreign.record());
      } else if (check_contents) {
        check(l, *l.stream);
      }
      expected -= l.buffer.bytes();
      std::swap(l, live.back());
      live.pop_back();
    }
    EXPECT_EQ(pool.stats().current, expected);
  }
  live.clear();
  a.synchronize();
  b.synchronize();
  EXPECT_EQ(num_bad->load(), 0) << "memory changed under its owner";
  EXPECT_EQ(pool.stats().current, 0);
  return placed;
}

class PoolLife : public ::testing::TestWithParam<StreamMode> {};
INSTANTIATE_TEST_SUITE_P(Modes, PoolLife, ::testing::Values(StreamMode::inlined, StreamMode::threaded),
                         [](const auto& info) { return info.param == StreamMode::inlined ? "inlined" : "threaded"; });

TEST_P(PoolLife, EndsWithNothingLost) {
  const auto pool = make_cpu_pool();
  const auto a = make_cpu_stream("a", GetParam()), b = make_cpu_stream("b", GetParam());
  for (std::uint64_t seed : {1U, 2U, 3U}) (void)random_life(*pool, *a, *b, seed, true);
  pool->trim();
  EXPECT_EQ(pool->stats().reserved, 0);
}

// A buffer that another thread destroyed waits for the host to come by; the pool may end before that, and the stream
// too.
TEST_P(PoolLife, EndsWithABufferThatAnotherThreadFreed) {
  auto pool = make_cpu_pool();
  auto stream = make_cpu_stream("a", GetParam());
  Buffer buffer = pool->allocate(1000, kActivation, *stream);
  Buffer empty = pool->allocate(0, kActivation, *stream);
  std::thread([freed = std::move(buffer), also_freed = std::move(empty)]() mutable {
    freed.reset();
    also_freed.reset();
  }).join();
  stream.reset();
  pool.reset();
}

TEST(PoolPlacement, DependsOnTheHostsOrderOnly) {
  const auto run = [](StreamMode mode, std::int64_t delay_us) {
    const auto pool = make_cpu_pool();
    const auto a = delay_tasks(make_cpu_stream("a", mode), 1, std::chrono::microseconds(delay_us));
    const auto b = delay_tasks(make_cpu_stream("b", mode), 2, std::chrono::microseconds(delay_us));
    auto placed = random_life(*pool, *a, *b, 7, true);
    placed.push_back(pool->stats().reserved);
    placed.push_back(pool->stats().peak);
    return placed;
  };
  const auto expected = run(StreamMode::inlined, 0);
  EXPECT_EQ(run(StreamMode::threaded, 0), expected);
  EXPECT_EQ(run(StreamMode::threaded, 100), expected);
}

}  // namespace
}  // namespace mica
