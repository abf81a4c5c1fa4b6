// SPDX-License-Identifier: Apache-2.0
#include "mica/plan/memory_plan.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "unit/plan/layers.hpp"
#include "unit/plan/planned_run.hpp"

namespace mica::plan {
namespace {

using test::Layers;
using test::Measured;
using test::PlannedRun;
using ::testing::HasSubstr;

// docs/parity.md D16, in units of S = model bytes / ranks: SGD with momentum on two ranks, then Adam.
TEST(MemoryPlan, D16_KnowsTheShapeOfAStep) {
  const std::int64_t s = 4 * (400 + 350 + 250);
  PlannedRun run;
  run.make_model = [] { return std::make_unique<Layers>(800, std::vector<std::int64_t>{700, 500}, 1); };
  run.wrap = fsdp::wrap_types({"layer"});
  run.inputs = {{Shape{1}, DType::f32}};
  for (const int kinds : {1, 2}) {
    run.num_state_kinds = kinds;
    StepRecorder recorder(test::dry_options(2, 0, run));
    const Measured dry = test::measure_run({}, run, &recorder);
    EXPECT_EQ(dry.steps[0].start, s);
    EXPECT_EQ(dry.steps[0].after_backward, 2 * s);
    EXPECT_EQ(dry.steps[2].start, (1 + kinds) * s);
    EXPECT_EQ(dry.steps[2].after_backward, (2 + kinds) * s);
    EXPECT_EQ(dry.steps[2].after_step, (2 + kinds) * s);
    EXPECT_EQ(dry.steps[2].after_zero_grad, (1 + kinds) * s);
  }
}

TEST(MemoryMeter, TakesPeaksBetweenCallsAndOfAllTime) {
  const std::unique_ptr<Pool> pool = make_cpu_pool();
  const std::unique_ptr<Stream> stream = make_cpu_stream("compute", StreamMode::inlined);
  const auto hold = [&](std::int64_t bytes, MemoryRole role) { return pool->allocate(bytes, role, *stream); };
  static_cast<void>(hold(5000, MemoryRole::workspace));  // before
  const Buffer kept = hold(100, MemoryRole::sharded_param);
  MemoryMeter meter(*pool);
  static_cast<void>(hold(1000, MemoryRole::activation));
  static_cast<void>(hold(300, MemoryRole::communication));
  const MemoryLevel peak = meter.take_peak();
  EXPECT_EQ(peak.total, 1100);
  EXPECT_EQ(peak.by_role[static_cast<std::size_t>(MemoryRole::activation)], 1000);
  EXPECT_EQ(peak.by_role[static_cast<std::size_t>(MemoryRole::communication)], 300);  // not at the same moment
  EXPECT_EQ(peak.by_role[static_cast<std::size_t>(MemoryRole::workspace)], 0);
  static_cast<void>(hold(50, MemoryRole::activation));
  EXPECT_EQ(meter.take_peak().total, 150);
  EXPECT_EQ(meter.now().total, 100);
  EXPECT_EQ(meter.stats().peak, 1100);
  EXPECT_EQ(meter.stats().current, 100);
  EXPECT_EQ(meter.stats().peak_of(MemoryRole::activation), 1000);
  EXPECT_GE(meter.stats().reserved_peak, 1100);
}

// --- printing

TEST(MemoryPlan, FormatsBytes) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1024), "1.00 KiB");
  EXPECT_EQ(format_bytes(1 << 20), "1.00 MiB");
  EXPECT_EQ(format_bytes(1536), "1.50 KiB");
  EXPECT_EQ(format_bytes(std::int64_t{340} << 20), "340.0 MiB");
  EXPECT_EQ(format_bytes(std::int64_t{5} << 28), "1.25 GiB");
  EXPECT_EQ(format_bytes(std::int64_t{3} << 50), "3072.0 TiB");
}

TEST(MemoryPlan, PrintsATableOfWhatIsUsed) {
  constexpr std::int64_t kMiB = 1 << 20;
  const auto level = [](std::int64_t masters, std::int64_t state, std::int64_t gradients) {
    MemoryLevel made{.total = masters + state + gradients};
    made.by_role[static_cast<std::size_t>(MemoryRole::sharded_param)] = masters;
    made.by_role[static_cast<std::size_t>(MemoryRole::optimizer)] = state;
    made.by_role[static_cast<std::size_t>(MemoryRole::sharded_grad)] = gradients;
    return made;
  };
  const MemoryLevel without = level(4 * kMiB, 8 * kMiB, 0), with = level(4 * kMiB, 8 * kMiB, 4 * kMiB);
  const StepMemory step{.start = without,
                        .forward_peak = without,
                        .backward_peak = level(4 * kMiB, 8 * kMiB, 20 * kMiB),
                        .after_backward = with,
                        .optimizer_peak = with,
                        .end = without};
  const std::string table = format_memory_plan(step, 32 * kMiB, 0);
  EXPECT_THAT(table, HasSubstr("memory of one rank      step begins   forward peak  backward peak after backward"));
  EXPECT_THAT(table, HasSubstr("sharded_param              4.00 MiB       4.00 MiB       4.00 MiB       4.00 MiB"));
  EXPECT_THAT(table, HasSubstr("optimizer                  8.00 MiB"));
  EXPECT_THAT(table, HasSubstr("sharded_grad                      -              -       20.0 MiB       4.00 MiB"));
  EXPECT_THAT(table, ::testing::Not(HasSubstr("low_precision_shard")));
  EXPECT_THAT(table, HasSubstr("peak 32.0 MiB (33554432 bytes), in backward"));
  EXPECT_THAT(table, ::testing::Not(HasSubstr("offload tier")));
  EXPECT_THAT(format_memory_plan(step, 32 * kMiB, 76), HasSubstr("in the offload tier 76 B more"));
}

}  // namespace
}  // namespace mica::plan
