// SPDX-License-Identifier: Apache-2.0
// Bytes added up by hand, which the pools of a real run and of a dry one must give (docs/design.md, Invariants 2).
#include <gtest/gtest.h>

#include "unit/plan/layers.hpp"
#include "unit/plan/planned_run.hpp"

namespace mica::plan {
namespace {

using fsdp::BackwardPrefetch;
using fsdp::Strategy;
using test::Layers;
using test::Measured;
using test::MeasuredStep;
using test::PlannedRun;

void expect_found(const MeasuredStep& found, const MeasuredStep& literal) {
  EXPECT_EQ(found.start, literal.start);
  EXPECT_EQ(found.forward_peak, literal.forward_peak);
  EXPECT_EQ(found.backward_peak, literal.backward_peak);
  EXPECT_EQ(found.after_backward, literal.after_backward);
  EXPECT_EQ(found.after_step, literal.after_step);
  EXPECT_EQ(found.after_zero_grad, literal.after_zero_grad);
}

struct RolePeak {
  MemoryRole role;
  std::int64_t bytes;
};

void expect_literal(int num_ranks, const PlannedRun& run, const MeasuredStep& first, const MeasuredStep& later, std::int64_t peak,
                    const std::vector<RolePeak>& role_peaks) {
  const auto expect_counted = [&](const Measured& measured) {
    expect_found(measured.steps[0], first);
    expect_found(measured.steps[1], later);
    expect_found(measured.steps[2], later);
    EXPECT_EQ(measured.peak, peak);
    for (const RolePeak& expected : role_peaks) {
      EXPECT_EQ(measured.peak_by_role[static_cast<std::size_t>(expected.role)], expected.bytes) << memory_role_name(expected.role);
    }
  };
  run_local_ranks(num_ranks,
                  [&](auto world) {
                    StepRecorder recorder(test::dry_options(num_ranks, world->rank(), run));
                    expect_counted(measure_run({}, run, &recorder));
                    expect_counted(measure_run([&](Pool&) { return std::move(world); }, run));
                  },
                  {.shares_memory = run.shares_memory});
}

/// A root of 6 parameters and two layers of 10 and 7, each a unit, whose outputs have 100 elements.
PlannedRun two_layers() {
  PlannedRun run;
  run.make_model = [] { return std::make_unique<Layers>(6, std::vector<std::int64_t>{10, 7}, 100); };
  run.wrap = fsdp::wrap_types({"layer"});
  run.inputs = {{Shape{1}, DType::f32}};
  return run;
}

// --- 1: full_shard, fp32, two ranks, inline, no prefetch
//
// Elements: root 6 -> 3 a rank, a 10 -> 5, b 7 -> padded 8 -> 4. Masters 4 * (3 + 5 + 4) = 48 bytes.
// Unsharded parameters and gradients: root 2*3*4 = 24, a 2*5*4 = 40, b 2*4*4 = 32. Sharded gradients: 12, 20, 16.
// Every output and its gradient: 100 elements, 400 bytes.
//
// forward                     bytes    backward                                  bytes
//   masters                      48      root gradients +24                        896
//   root gathered +24            72      b gathered +32, gradients +32, dx +400   1360
//   a gathered +40, y +400      512      b resharded -32, sharded grad +16, -32   1312
//   a resharded -40             472      a gathered +40, gradients +40, dx +400   1792  <- peak
//   b gathered +32, y +400      904  <-  dx of b -400, a resharded -40            1352
//   b resharded -32             872      sharded grad +20, gradients -40, y -400   932
//                                        root -24, sharded grad +12, -24           896
//                                        y of b and dx of a -800                    96 = masters 48 + gradients 48
// Momentum: 48 more from the first optimizer step on.
TEST(LiteralMemory, F4_FullShard) {
  PlannedRun run = two_layers();
  run.options.backward_prefetch = BackwardPrefetch::none;
  run.mode = StreamMode::inlined;
  run.num_state_kinds = 1;
  const MeasuredStep first{
      .start = 48, .forward_peak = 904, .backward_peak = 1792, .after_backward = 96, .after_step = 144, .after_zero_grad = 96};
  const MeasuredStep later{
      .start = 96, .forward_peak = 952, .backward_peak = 1840, .after_backward = 144, .after_step = 144, .after_zero_grad = 96};
  expect_literal(2, run, first, later, 1840,
                 {{MemoryRole::sharded_param, 48},
                  {MemoryRole::low_precision_shard, 0},
                  {MemoryRole::unsharded_param, 24 + 40},
                  {MemoryRole::unsharded_grad, 24 + 40},
                  {MemoryRole::sharded_grad, 48},
                  {MemoryRole::optimizer, 48},
                  {MemoryRole::activation, 4 * 400},
                  {MemoryRole::communication, 0}});
}

// The same with masters that lie side by side: without what was gathered, 24 bytes of the root, 40 of a and 32 of b. Each rank
// counts its own half of them.
TEST(LiteralMemory, F4_SharedMasters) {
  PlannedRun run = two_layers();
  run.options.backward_prefetch = BackwardPrefetch::none;
  run.mode = StreamMode::inlined;
  run.num_state_kinds = 1;
  run.shares_memory = true;
  const MeasuredStep first{.start = 48,
                           .forward_peak = 904 - 24 - 32,
                           .backward_peak = 1792 - 24 - 40,
                           .after_backward = 96,
                           .after_step = 144,
                           .after_zero_grad = 96};
  const MeasuredStep later{.start = 96,
                           .forward_peak = 952 - 24 - 32,
                           .backward_peak = 1840 - 24 - 40,
                           .after_backward = 144,
                           .after_step = 144,
                           .after_zero_grad = 96};
  expect_literal(2, run, first, later, 1840 - 24 - 40,
                 {{MemoryRole::sharded_param, 48},
                  {MemoryRole::low_precision_shard, 0},
                  {MemoryRole::unsharded_param, 0},
                  {MemoryRole::unsharded_grad, 24 + 40},
                  {MemoryRole::sharded_grad, 48},
                  {MemoryRole::optimizer, 48},
                  {MemoryRole::activation, 4 * 400},
                  {MemoryRole::communication, 0}});
}

// --- 2: hybrid_shard 2 x 2, bf16, threaded, prefetch pre
//
// Elements: root 10 -> 5 a rank, a 100 -> 50, b 60 -> 30, c 20 -> 10; masters 4 * 95 = 380 bytes.
// Unsharded in bf16, parameters as gradients: root 20, a 200, b 120, c 40. Cast shards: 10, 100, 60, 20.
// Sharded gradients (fp32): 20, 200, 120, 40. Outputs and their gradients: 50 f32, 200 bytes.
// The input is one f32, which the root casts: 2 bytes until a's forward is over.
// With threads a limiter keeps the buffer that was given up last, [..] below, until the next but one gather.
//
// forward                                        bytes   backward                                                bytes
//   masters 380, input +2, root +20 (+10 -10)      402     give [b] back -120, prefetch c +40 (+20 -20)           1080
//   a +200 (+100 -100), y +200, input -2           800     root gradients +20                                     1100
//   a resharded: [a]                               800     prefetch b +120 (+60 -60), c gradients +40, dx +200    1460
//   b +120 (+60 -60), y +200: [a]                 1120     c resharded: [c, c], sharded grad +40, gradients [c]   1500
//   b resharded: [a, b]                           1120     give [c] back -40, prefetch a +200 (+100 -100)         1660
//   give [a] back -200, c +40 (+20 -20), y +200   1160     b gradients +120, dx +200                              1980
//   c resharded: [b, c]                           1160     dx of c -200, sharded grad +120, y of b -200           1700
//                                                          gradients [c] back -40, a gradients +200, dx +200      2060  <- peak
//                                                          dx of b -200, sharded grad +200                        2060  <-
//                                                          y of a -200, root sharded grad +20                     1880
//                                                          all given back: parameters -380, gradients -340        1160
//                                                          y of c and dx of a -400                                 760
// Adam: 2 * 380 more from the first optimizer step on.
TEST(LiteralMemory, HybridShardInBf16WithPrefetch) {
  PlannedRun run;
  run.make_model = [] { return std::make_unique<Layers>(10, std::vector<std::int64_t>{100, 60, 20}, 50); };
  run.wrap = fsdp::wrap_types({"layer"});
  run.inputs = {{Shape{1}, DType::f32}};
  run.options.strategy = Strategy::hybrid_shard;
  run.options.mixed_precision.param_dtype = DType::bf16;
  run.shard_size = 2;
  run.mode = StreamMode::threaded;
  run.num_state_kinds = 2;
  const MeasuredStep first{
      .start = 380, .forward_peak = 1160, .backward_peak = 2060, .after_backward = 760, .after_step = 1520, .after_zero_grad = 1140};
  const MeasuredStep later{
      .start = 1140, .forward_peak = 1920, .backward_peak = 2820, .after_backward = 1520, .after_step = 1520, .after_zero_grad = 1140};
  expect_literal(4, run, first, later, 2820,
                 {{MemoryRole::sharded_param, 380},
                  {MemoryRole::low_precision_shard, 100},
                  {MemoryRole::unsharded_param, 20 + 40 + 120 + 200},  // root, [c], b, prefetched a
                  {MemoryRole::unsharded_grad, 20 + 120 + 200},        // root, [b], a
                  {MemoryRole::sharded_grad, 380},
                  {MemoryRole::optimizer, 760},
                  {MemoryRole::activation, 5 * 200}});
}

// --- 3: one unit, shard_grad_op, three ranks, two micro-batches without synchronisation between
//
// Flat parameter: root's 6 at 0, a's 10 at 64, b's 7 at 128, end 135 = 3 * 45. Masters and sharded gradients 4 * 45 =
// 180 bytes, unsharded parameters and gradients 4 * 135 = 540. Outputs and their gradients 400 bytes.
//
// micro-batch 1                                  micro-batch 2
//   gathered: 180 + 540 = 720                      parameters and gradients are there still: 1260
//   y of a and b: 1520  forward peak of it         y of a and b: 2060  <- forward peak of the step
//   gradients +540: 2060                           dx of b and a: 2860 <- backward peak
//   dx of b +400, dx of a +400: 2860 <- peak       at the end: -540 parameters, +180 sharded gradient, -540 gradients
//   at the end activations are gone: 1260          activations gone: 360
TEST(LiteralMemory, OneUnitWithoutSynchronisation) {
  PlannedRun run = two_layers();
  run.wrap = fsdp::wrap_nothing();
  run.options.strategy = Strategy::shard_grad_op;
  run.micro_batches = 2;
  run.no_sync = true;
  run.num_state_kinds = 1;
  const MeasuredStep first{
      .start = 180, .forward_peak = 2060, .backward_peak = 2860, .after_backward = 360, .after_step = 540, .after_zero_grad = 360};
  const MeasuredStep later{
      .start = 360, .forward_peak = 2240, .backward_peak = 3040, .after_backward = 540, .after_step = 540, .after_zero_grad = 360};
  for (const StreamMode mode : {StreamMode::inlined, StreamMode::threaded}) {
    run.mode = mode;
    expect_literal(3, run, first, later, 3040,
                   {{MemoryRole::unsharded_param, 540}, {MemoryRole::unsharded_grad, 540}, {MemoryRole::sharded_grad, 180}});
  }
}

// --- 4: no_shard in fp32: the master is the parameter
//
// Masters and gradients: root 24, a 40, b 28 bytes, 92 together. Outputs and their gradients 400 bytes.
// forward: 92 + 2 * 400 = 892. backward: root gradients +24 = 916; b gradients +28, dx +400 = 1344; reduced: +28 -28;
// a gradients +40, dx +400 = 1784 <- peak; dx of b -400, reduced +40 -40, y of a -400 = 984; root +24 -24;
// y of b and dx of a -800 = 184. Plain SGD: no state.
TEST(LiteralMemory, NoShardUsesTheMaster) {
  PlannedRun run = two_layers();
  run.options.strategy = Strategy::no_shard;
  run.shard_size = 1;
  run.num_state_kinds = 0;
  const MeasuredStep every{
      .start = 92, .forward_peak = 892, .backward_peak = 1784, .after_backward = 184, .after_step = 184, .after_zero_grad = 92};
  expect_literal(2, run, every, every, 1784,
                 {{MemoryRole::unsharded_param, 0}, {MemoryRole::unsharded_grad, 24 + 40}, {MemoryRole::optimizer, 0}});
}

// --- 5: the same on one rank: nothing is reduced, and each gradient stays where the backward wrote it
//
// forward: 92 + 2 * 400 = 892. backward: root gradients +24 = 916; b gradients +28, dx +400 = 1344; a gradients +40,
// dx +400 = 1784 <- peak. With threads too: no gradient is given up, so none is kept back.
TEST(LiteralMemory, ARankAloneHasEachGradientOnce) {
  PlannedRun run = two_layers();
  run.num_state_kinds = 0;
  const MeasuredStep every{
      .start = 92, .forward_peak = 892, .backward_peak = 1784, .after_backward = 184, .after_step = 184, .after_zero_grad = 92};
  for (const StreamMode mode : {StreamMode::inlined, StreamMode::threaded}) {
    run.mode = mode;
    expect_literal(1, run, every, every, 1784, {{MemoryRole::unsharded_grad, 0}, {MemoryRole::sharded_grad, 92}});
  }
}

// Masters and gradients are on the CPU: 48 bytes each, no state (nothing steps).
TEST(LiteralMemory, F4_TheOffloadTier) {
  PlannedRun run = two_layers();
  run.options.cpu_offload = fsdp::CpuOffload::parameters;
  run_local_ranks(2, [&](auto world) {
    StepRecorder recorder(test::dry_options(2, world->rank(), run));
    EXPECT_EQ(measure_run({}, run, &recorder).offload_peak, 48 + 48);
    EXPECT_EQ(measure_run([&](Pool&) { return std::move(world); }, run).offload_peak, 48 + 48);
  });
}

// --- pages: the dry device's pool has blocks where a real one has them, with the gaps between them
TEST(DryMemory, TakesTheVeryPagesOfARealRun) {
  PlannedRun run;
  run.make_model = [] { return std::make_unique<Layers>(300'000, std::vector<std::int64_t>{2'000'000, 1'500'002, 4'000'000}, 700'001); };
  run.wrap = fsdp::wrap_types({"layer"});
  run.inputs = {{Shape{1}, DType::f32}};
  run.micro_batches = 2;
  for (const StreamMode mode : {StreamMode::inlined, StreamMode::threaded}) {
    run.mode = mode;
    StepRecorder recorder(test::dry_options(2, 0, run));
    const Measured dry = measure_run({}, run, &recorder);
    EXPECT_GT(dry.reserved, dry.peak);
    run_local_ranks(2, [&](auto world) { EXPECT_EQ(measure_run([&](Pool&) { return std::move(world); }, run).reserved, dry.reserved); });
  }
}

}  // namespace
}  // namespace mica::plan
