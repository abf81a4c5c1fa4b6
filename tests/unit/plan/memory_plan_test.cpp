// SPDX-License-Identifier: Apache-2.0
// What a memory plan counts beside the literal steps of literal_memory_test.cpp, refuses and prints.
#include "mica/plan/memory_plan.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "unit/plan/layers.hpp"
#include "unit/plan/planned_run.hpp"

namespace mica::plan {
namespace {

using test::Layers;
using test::PlannedRun;
using ::testing::HasSubstr;

/// One unit of 12 elements, no activations.
std::vector<UnitSpec> one_unit(int shard_size) { return {{.name = "root", .shard_numel = 12 / shard_size, .shard_size = shard_size}}; }

TEST(MemoryPlan, OtherReductionsHoldGradientsOnTheirWay) {
  const StepSpec spec{.mesh = {.world_size = 4, .shard_size = 2, .replicas = 2}, .mode = StreamMode::inlined, .state_bytes_per_element = 0};
  std::vector<UnitSpec> units = one_unit(2);
  // Masters 24, gradients 48, their shard 24; exchanged over the shard axis +48, gathered from both replicas +96.
  units[0].is_deterministic = true;
  const MemoryPlan deterministic = make_memory_plan(units, spec, PassProfile::chain(1));
  EXPECT_EQ(deterministic.first_step.backward_peak.total(), 24 + 48 + 24 + 48 + 96);
  EXPECT_EQ(deterministic.peak_of(MemoryRole::communication), 48 + 96);
  // A copy of the gradients in half the bytes.
  units[0].is_deterministic = false;
  units[0].wire_dtype = DType::f16;
  const MemoryPlan compressed = make_memory_plan(units, spec, PassProfile::chain(1));
  EXPECT_EQ(compressed.first_step.backward_peak.total(), 24 + 48 + 24 + 24);
  EXPECT_EQ(compressed.peak_of(MemoryRole::communication), 24);
}

TEST(MemoryPlan, CountsStagingWhileACollectiveIsEnqueued) {
  StepSpec spec{.mesh = {.world_size = 4, .shard_size = 2, .replicas = 2}, .mode = StreamMode::inlined, .state_bytes_per_element = 0};
  std::vector<std::string> asked;
  spec.staging_bytes = [&](Collective kind, std::int64_t numel, DType dtype, int num_ranks) {
    asked.push_back(fmt::format("{} {} {} {}", collective_name(kind), numel, dtype_name(dtype), num_ranks));
    return kind == Collective::reduce_scatter ? 1000 : 10;
  };
  const MemoryPlan plan = make_memory_plan(one_unit(2), spec, PassProfile::chain(1));
  // Masters 24; forward: gathered +48, staging +10. Backward: gradients +48; resharded -48; sharded gradient +24, staging
  // of reduce-scatter +1000.
  EXPECT_EQ(plan.first_step.forward_peak.total(), 24 + 48 + 10);
  EXPECT_EQ(plan.first_step.backward_peak.total(), 24 + 48 + 24 + 1000);
  EXPECT_EQ(plan.first_step.after_backward.total(), 24 + 24);
  EXPECT_EQ(plan.first_step.optimizer_peak.total(), 24 + 24 + 10);
  EXPECT_EQ(plan.peak_of(MemoryRole::communication), 1000);
  // A step: all-gather, reduce-scatter, all-reduce of the shard over the replicas, all-reduce of the norm.
  ASSERT_EQ(asked.size(), 8U);
  EXPECT_THAT(std::vector<std::string>(asked.begin(), asked.begin() + 4),
              ::testing::ElementsAre("all_gather 12 fp32 2", "reduce_scatter 12 fp32 2", "all_reduce 6 fp32 2", "all_reduce 1 fp32 2"));
}

TEST(MemoryPlan, CountsWhatTheOptimizersStepTakes) {
  StepSpec spec{.state_bytes_per_element = 8, .step_workspace_bytes = 500};
  const MemoryPlan plan = make_memory_plan(one_unit(1), spec, PassProfile::chain(1));
  // 12 elements: master 48, gradient 48, state 96, workspace 500.
  EXPECT_EQ(plan.first_step.optimizer_peak.total(), 48 + 48 + 96 + 500);
  EXPECT_EQ(plan.first_step.optimizer_peak.of(MemoryRole::workspace), 500);
  EXPECT_EQ(plan.first_step.after_step.total(), 48 + 48 + 96);
  EXPECT_EQ(plan.peak, 692);
}

TEST(MemoryPlan, TakesActivationsFromClosedFormulas) {
  PassProfile profile = PassProfile::chain(2);
  // Hooks: root in, block in, block out, root out, root back, block back, block done, root done.
  profile.points[2].before = Stretch::of(700, 500, 60);  // the block's forward: at most 700, 500 stay, scratch 60
  for (const std::size_t i : {3, 4, 5}) profile.points[i].before = Stretch::at(500);
  profile.points[6].before = Stretch::of(900, 100);
  profile.points[6].before.workspace_peak = 80;  // at another moment than the 900
  profile.points[7].before = Stretch::at(100);
  const std::vector<UnitSpec> units{{.name = "root", .shard_numel = 2, .shard_size = 2},
                                    {.name = "block", .shard_numel = 3, .shard_size = 2}};
  const StepSpec spec{.mesh = {.world_size = 2, .shard_size = 2}, .mode = StreamMode::inlined, .state_bytes_per_element = 0};
  const MemoryPlan plan = make_memory_plan(units, spec, profile);
  // Masters 20. Forward: root 16, block 24, 760. Backward: root and block with gradients 2 * (16 + 24), 900.
  EXPECT_EQ(plan.first_step.forward_peak.total(), 20 + 16 + 24 + 760);
  EXPECT_EQ(plan.first_step.forward_peak.of(MemoryRole::workspace), 60);
  EXPECT_EQ(plan.first_step.backward_peak.total(), 20 + 80 + 900);
  EXPECT_EQ(plan.peak_of(MemoryRole::activation), 900);
  EXPECT_EQ(plan.peak_of(MemoryRole::workspace), 80);
}

// docs/parity.md D16, in units of S = model bytes / ranks: SGD with momentum on two ranks, then Adam.
TEST(MemoryPlan, D16_KnowsTheShapeOfAStep) {
  const std::int64_t s = 4 * 1000;
  const std::vector<UnitSpec> units{{.name = "root", .shard_numel = 400, .shard_size = 2},
                                    {.name = "a", .shard_numel = 350, .shard_size = 2},
                                    {.name = "b", .shard_numel = 250, .shard_size = 2}};
  for (const int kinds : {1, 2}) {
    const StepSpec spec{.mesh = {.world_size = 2, .shard_size = 2}, .state_bytes_per_element = 4 * kinds};
    const MemoryPlan plan = make_memory_plan(units, spec, PassProfile::chain(3));
    EXPECT_EQ(plan.first_step.start.total(), s);
    EXPECT_EQ(plan.first_step.after_backward.total(), 2 * s);
    EXPECT_EQ(plan.later_step.start.total(), (1 + kinds) * s);
    EXPECT_EQ(plan.later_step.after_backward.total(), (2 + kinds) * s);
    EXPECT_EQ(plan.later_step.after_step.total(), (2 + kinds) * s);
    EXPECT_EQ(plan.later_step.after_zero_grad.total(), (1 + kinds) * s);
  }
}

TEST(MemoryPlan, RefusesAProfileOfAnotherModel) {
  EXPECT_THROW(static_cast<void>(make_memory_plan(one_unit(1), {}, PassProfile::chain(2))), Error);
}

TEST(MemoryPlan, RefusesAnOutputDtypeWhoseCastsItDoesNotCount) {
  run_local_ranks(1, [](auto world) {
    PlannedRun run;
    run.make_model = [] { return std::make_unique<Layers>(6, std::vector<std::int64_t>{4}, 1); };
    run.options.mixed_precision.output_dtype = DType::bf16;
    try {
      static_cast<void>(run_and_plan(std::move(world), run));
      ADD_FAILURE() << "planned";
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), HasSubstr("casts its outputs to bf16 (output_dtype), which a memory plan does not count"));
    }
  });
}

// --- printing
// ----------------------------------------------------------------------------------------------------------

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
  const std::vector<UnitSpec> units{{.name = "root", .shard_numel = std::int64_t{1} << 20, .shard_size = 2}};
  const StepSpec spec{.mesh = {.world_size = 2, .shard_size = 2}, .state_bytes_per_element = 8};
  const std::string table = format_memory_plan(make_memory_plan(units, spec, PassProfile::chain(1)));
  EXPECT_THAT(table, HasSubstr("memory of one rank      step begins   forward peak  backward peak after backward"));
  EXPECT_THAT(table, HasSubstr("sharded_param              4.00 MiB       4.00 MiB       4.00 MiB       4.00 MiB"));
  EXPECT_THAT(table, HasSubstr("optimizer                  8.00 MiB"));
  EXPECT_THAT(table, HasSubstr("sharded_grad                      -              -"));
  EXPECT_THAT(table, ::testing::Not(HasSubstr("low_precision_shard")));
  // Masters 4, state 8, unsharded 8 and 8, sharded gradient 4 while the unsharded one is there still.
  EXPECT_THAT(table, HasSubstr("peak 32.0 MiB (33554432 bytes), in backward"));
}

}  // namespace
}  // namespace mica::plan
