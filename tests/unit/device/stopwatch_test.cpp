// SPDX-License-Identifier: Apache-2.0
#include "mica/device/stopwatch.hpp"

#include <atomic>
#include <chrono>
#include <thread>

#include <gtest/gtest.h>

namespace mica {
namespace {

void sleep_on(Stream& stream, int ms) {
  stream.submit("sleep", {}, [ms] { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); });
}

// Only what lies between start and stop counts, however long the stream works.
TEST(Stopwatch, AddsUpStretches) {
  for (const StreamMode mode : {StreamMode::inlined, StreamMode::threaded}) {
    const std::unique_ptr<Stream> stream = make_cpu_stream("compute", mode);
    Stopwatch watch;
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < 2; ++i) {
      sleep_on(*stream, 200);
      watch.start(*stream);
      sleep_on(*stream, 10);
      watch.stop(*stream);
    }
    stream->synchronize();
    const std::chrono::duration<double, std::milli> all = std::chrono::steady_clock::now() - begin;
    EXPECT_GE(watch.ms(), 20);
    EXPECT_LE(watch.ms(), all.count() - 400) << "without the other stretches";
  }
}

TEST(Stopwatch, TimesWaitsForOtherStreams) {
  Stopwatch waits;
  const std::unique_ptr<Stream> compute = time_waits(make_cpu_stream("compute", StreamMode::threaded), waits);
  const std::unique_ptr<Stream> other = make_cpu_stream("unshard", StreamMode::threaded);
  std::atomic<bool> is_open = false;
  other->submit("gate", {}, [&] { is_open.wait(false); });
  compute->wait(other->record());
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  is_open = true;
  is_open.notify_one();
  compute->synchronize();
  EXPECT_GT(waits.ms(), 0);
  const double before = waits.ms();
  compute->wait(other->record());  // has happened
  compute->synchronize();
  EXPECT_EQ(waits.ms(), before);
}

}  // namespace
}  // namespace mica
