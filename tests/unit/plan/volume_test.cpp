// SPDX-License-Identifier: Apache-2.0
#include "mica/plan/volume.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "unit/plan/layers.hpp"
#include "unit/plan/planned_run.hpp"

namespace mica::plan {
namespace {

using fsdp::Strategy;
using test::Layers;
using test::PlannedRun;
using ::testing::HasSubstr;

struct Expected {
  Collective kind;
  std::string group;
  std::int64_t calls, bytes, sent_bytes;
};

void expect_volume(const std::vector<CollectiveVolume>& found, const std::vector<Expected>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(found[i].kind, expected[i].kind) << i;
    EXPECT_EQ(found[i].group, expected[i].group) << i;
    EXPECT_EQ(found[i].calls, expected[i].calls) << i;
    EXPECT_EQ(found[i].bytes, expected[i].bytes) << i;
    EXPECT_EQ(found[i].sent_bytes, expected[i].sent_bytes) << i;
  }
}

constexpr std::int64_t kMega = 1'000'000;

/// A root unit and 12 layers of `numel` elements each.
PlannedRun thirteen_units(std::int64_t numel, Strategy strategy) {
  PlannedRun run;
  run.make_model = [numel] { return std::make_unique<Layers>(numel, std::vector<std::int64_t>(12, numel), 1); };
  run.wrap = fsdp::wrap_types({"layer"});
  run.inputs = {{Shape{1}, DType::f32}};
  run.options.strategy = strategy;
  return run;
}

/// Of the third step.
std::vector<CollectiveVolume> volume(int num_ranks, const PlannedRun& run) {
  StepRecorder recorder(test::dry_options(num_ranks, 0, run));
  static_cast<void>(test::measure_run({}, run, &recorder));
  return volume_of(recorder.take(), 0);
}

// docs/parity.md D1: n = 13 gathers in forward, n - 1 in backward (the root unit keeps its own), n reductions.
TEST(Volume, D1_FullShard) {
  // 4 MB a unit: sends 3/4 of 25 * 4 MB, 3/4 of 13 * 4 MB, and 2 * 3/4 of 4 bytes for the norm.
  expect_volume(volume(4, thirteen_units(kMega, Strategy::full_shard)),
                {{Collective::all_gather, "shard/unshard", 25, 100 * kMega, 75 * kMega},
                 {Collective::reduce_scatter, "shard/reduce", 13, 52 * kMega, 39 * kMega},
                 {Collective::all_reduce, "shard", 1, 4, 6}});
}

TEST(Volume, D1_ShardGradOpGathersOnce) {
  expect_volume(volume(4, thirteen_units(kMega, Strategy::shard_grad_op)),
                {{Collective::all_gather, "shard/unshard", 13, 52 * kMega, 39 * kMega},
                 {Collective::reduce_scatter, "shard/reduce", 13, 52 * kMega, 39 * kMega},
                 {Collective::all_reduce, "shard", 1, 4, 6}});
}

TEST(Volume, D1_HybridAlsoReducesShardsOverTheReplicas) {
  PlannedRun run = thirteen_units(kMega, Strategy::hybrid_shard);
  run.shard_size = 4;
  // The shards: 13 * 1 MB, of which 2 * 1/2 is sent.
  expect_volume(volume(8, run), {{Collective::all_gather, "shard/unshard", 25, 100 * kMega, 75 * kMega},
                                 {Collective::reduce_scatter, "shard/reduce", 13, 52 * kMega, 39 * kMega},
                                 {Collective::all_reduce, "replicate/all_reduce", 13, 13 * kMega, 13 * kMega},
                                 {Collective::all_reduce, "shard", 1, 4, 6}});
}

TEST(Volume, D1_NoShardAllReducesWholeGradients) {
  PlannedRun run = thirteen_units(kMega, Strategy::no_shard);
  run.shard_size = 1;
  expect_volume(volume(2, run), {{Collective::all_reduce, "replicate/all_reduce", 13, 52 * kMega, 52 * kMega}});
  // The same units on a sharded mesh: once, over the world.
  run.shard_size = 2;
  expect_volume(volume(2, run),
                {{Collective::all_reduce, "world/all_reduce", 13, 52 * kMega, 52 * kMega}, {Collective::all_reduce, "shard", 1, 4, 4}});
}

TEST(Volume, D1_AccumulationWithAndWithoutSynchronisation) {
  const auto calls = [&](Strategy strategy, bool no_sync) {
    PlannedRun run = thirteen_units(kMega, strategy);
    run.micro_batches = 3;
    run.no_sync = no_sync;
    std::vector<std::int64_t> found;
    for (const CollectiveVolume& v : volume(2, run)) found.push_back(v.calls);
    return found;
  };
  EXPECT_THAT(calls(Strategy::full_shard, false), ::testing::ElementsAre(3 * 25, 3 * 13, 1));
  EXPECT_THAT(calls(Strategy::full_shard, true), ::testing::ElementsAre(3 * 25, 13, 1));
  EXPECT_THAT(calls(Strategy::shard_grad_op, false), ::testing::ElementsAre(3 * 13, 3 * 13, 1));
  EXPECT_THAT(calls(Strategy::shard_grad_op, true), ::testing::ElementsAre(13, 13, 1));
}

TEST(Volume, LowPrecisionHalvesTheBytesOfItsSide) {
  PlannedRun run = thirteen_units(kMega, Strategy::full_shard);
  run.options.mixed_precision = {.param_dtype = DType::bf16, .reduce_dtype = DType::f32};
  expect_volume(volume(2, run), {{Collective::all_gather, "shard/unshard", 25, 50 * kMega, 25 * kMega},
                                 {Collective::reduce_scatter, "shard/reduce", 13, 52 * kMega, 26 * kMega},
                                 {Collective::all_reduce, "shard", 1, 4, 4}});
}

TEST(Volume, OneRankSendsNothing) {
  const std::vector<CollectiveVolume> found = volume(1, thirteen_units(kMega, Strategy::full_shard));
  EXPECT_TRUE(found.empty());
  EXPECT_EQ(total_sent_bytes(found), 0);
  EXPECT_EQ(format_volume(found), "no communication\n");
}

TEST(Volume, Prints) {
  const std::string text = format_volume(volume(4, thirteen_units(1 << 20, Strategy::full_shard)));
  EXPECT_THAT(text, HasSubstr("all_gather       shard/unshard               4       25       75.0 MiB"));
  EXPECT_THAT(text, HasSubstr("total                                                        114.0 MiB"));
}

}  // namespace
}  // namespace mica::plan
