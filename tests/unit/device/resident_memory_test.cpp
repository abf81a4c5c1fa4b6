// SPDX-License-Identifier: Apache-2.0
#include <fstream>
#include <random>
#include <string>

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include "fsdp_pattern.hpp"

namespace mica::test {
namespace {

struct Case {
  std::string name;
  FsdpPattern pattern;
};

/// Variations of training that keep at least 500 MB in use.
std::vector<Case> cases() {
  std::vector<Case> all{{"base", {}}};
  const auto add = [&](std::string name, auto change) {
    all.push_back({std::move(name), {}});
    change(all.back().pattern);
  };
  add("keeps_grads", [](FsdpPattern& p) { p.frees_grads = false; });
  add("checkpointing", [](FsdpPattern& p) { p.activation_checkpointing = true; });
  add("bf16", [](FsdpPattern& p) { p.low_precision = true; });
  add("no_prefetch", [](FsdpPattern& p) { p.prefetch = false; });
  add("eight_ranks", [](FsdpPattern& p) { p.shard_size = 8; });
  add("one_rank", [](FsdpPattern& p) { p.shard_size = 1; });
  add("odd_tokens", [](FsdpPattern& p) { p.tokens = 333; });
  add("long_sequences", [](FsdpPattern& p) { p.tokens = 4099; });
  return all;
}

class ResidentMemory : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Patterns, ResidentMemory, ::testing::ValuesIn(cases()), [](const auto& info) { return info.param.name; });

TEST_P(ResidentMemory, ReservedStaysWithin5PercentOfThePeak) {
  for (StreamMode mode : {StreamMode::inlined, StreamMode::threaded}) {
    const auto pool = make_cpu_pool();
    FsdpModel model(GetParam().pattern, *pool, mode);
    std::int64_t settled = 0;
    for (int step = 1; step <= 6; ++step) {
      model.step();
      const MemoryStats& stats = pool->stats();
      EXPECT_GE(stats.peak, 500'000'000) << "the case is too small to say anything";
      EXPECT_LE(static_cast<double>(stats.reserved), 1.05 * static_cast<double>(stats.peak)) << "step " << step;
      EXPECT_GE(stats.reserved, stats.current) << "step " << step;
      if (step == 3) settled = stats.reserved;
      if (step > 3) {
        EXPECT_EQ(stats.reserved, settled) << "a repeating pattern must settle";
      }
    }
  }
}

TEST(ResidentMemoryOfRandomModels, StaysWithin5PercentToo) {
  std::mt19937 random(5);
  const auto draw = [&](std::int64_t from, std::int64_t to) {
    return from + static_cast<std::int64_t>(random() % static_cast<unsigned>(to - from + 1));
  };
  int num_cases = 0;
  for (int i = 0; i < 60; ++i) {
    FsdpPattern p;
    p.width = 64 * draw(1, 32);
    p.num_blocks = static_cast<int>(draw(1, 24));
    p.block_numel = 12 * p.width * p.width + 13 * p.width + draw(0, 6);
    p.root_numel = p.width * draw(256, 50257);
    p.shard_size = static_cast<int>(draw(1, 16));
    p.tokens = draw(1, 5000);
    p.prefetch = draw(0, 1) == 1;
    p.frees_grads = draw(0, 1) == 1;
    p.activation_checkpointing = draw(0, 1) == 1;
    p.low_precision = draw(0, 1) == 1;
    const auto pool = make_cpu_pool();
    FsdpModel model(p, *pool, StreamMode::inlined);
    bool big = true;
    for (int step = 1; step <= 4; ++step) {
      model.step();
      big = big && pool->stats().peak >= 500'000'000;
      if (big) {
        EXPECT_LE(static_cast<double>(pool->stats().reserved), 1.05 * static_cast<double>(pool->stats().peak))
            << "pattern " << i << " step " << step;
      }
    }
    num_cases += big ? 1 : 0;
  }
  EXPECT_GE(num_cases, 30);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // whose shadow memory counts as resident
std::int64_t resident_bytes() {
  std::int64_t total = 0;
  std::int64_t resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

std::int64_t num_page_faults() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

TEST(ResidentMemoryOfTheProcess, FollowsThePeakAndSettles) {
  for (StreamMode mode : {StreamMode::inlined, StreamMode::threaded}) {
    FsdpPattern pattern;
    pattern.touch = true;
    pattern.num_blocks = 6;
    pattern.shard_size = 8;
    pattern.tokens = 512;
    const std::int64_t before = resident_bytes();
    const auto pool = make_cpu_pool();
    FsdpModel model(pattern, *pool, mode);
    for (int step = 1; step <= 5; ++step) {
      const std::int64_t faults = num_page_faults();
      model.step();
      model.synchronize();
      const auto peak = static_cast<double>(pool->stats().peak);
      const auto grown = static_cast<double>(resident_bytes() - before);
      EXPECT_GE(peak, 500e6);
      EXPECT_LE(grown, 1.05 * peak) << "step " << step;
      if (step > 1) {
        EXPECT_GE(grown, 0.9 * peak) << "the pattern touches all it takes";
      }
      if (step >= 4) {
        EXPECT_LE(num_page_faults() - faults, 20) << "a repeating pattern must not pay for pages again";
      }
    }
  }
}
#endif

}  // namespace
}  // namespace mica::test
