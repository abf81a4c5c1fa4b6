// SPDX-License-Identifier: Apache-2.0
#include "mica/plan/volume.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace mica::plan {
namespace {

using fsdp::BackwardPrefetch;
using fsdp::Strategy;
using ::testing::HasSubstr;

struct Expected {
  Collective kind;
  Axis axis;
  std::int64_t calls, bytes, sent_bytes;
};

void expect_volume(const std::vector<AxisVolume>& found, const std::vector<Expected>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(found[i].kind, expected[i].kind) << i;
    EXPECT_EQ(found[i].axis, expected[i].axis) << i;
    EXPECT_EQ(found[i].calls, expected[i].calls) << i;
    EXPECT_EQ(found[i].bytes, expected[i].bytes) << i;
    EXPECT_EQ(found[i].sent_bytes, expected[i].sent_bytes) << i;
  }
}

/// A root unit and 12 blocks of `numel` elements each.
std::vector<UnitSpec> thirteen_units(std::int64_t numel, int shard_size, Strategy strategy) {
  UnitSpec unit{.shard_numel = numel / shard_size, .shard_size = shard_size, .strategy = strategy};
  return std::vector<UnitSpec>(13, unit);
}

constexpr std::int64_t kMega = 1'000'000;

// docs/parity.md D1: n = 13 gathers in forward, n - 1 in backward (the root unit keeps its own), n reductions.
TEST(Volume, D1_FullShard) {
  const StepSpec spec{.mesh = {.world_size = 4, .shard_size = 4}};
  // 4 MB a unit: sends 3/4 of 25 * 4 MB, 3/4 of 13 * 4 MB, and 2 * 3/4 of 4 bytes for the norm.
  expect_volume(volume_of_step(thirteen_units(kMega, 4, Strategy::full_shard), spec, PassProfile::chain(13)),
                {{Collective::all_gather, Axis::shard, 25, 100 * kMega, 75 * kMega},
                 {Collective::reduce_scatter, Axis::shard, 13, 52 * kMega, 39 * kMega},
                 {Collective::all_reduce, Axis::shard, 1, 4, 6}});
}

TEST(Volume, D1_ShardGradOpGathersOnce) {
  const StepSpec spec{.mesh = {.world_size = 4, .shard_size = 4}, .clips_grads = false};
  expect_volume(volume_of_step(thirteen_units(kMega, 4, Strategy::shard_grad_op), spec, PassProfile::chain(13)),
                {{Collective::all_gather, Axis::shard, 13, 52 * kMega, 39 * kMega},
                 {Collective::reduce_scatter, Axis::shard, 13, 52 * kMega, 39 * kMega}});
}

TEST(Volume, D1_HybridAlsoReducesShardsOverTheReplicas) {
  const StepSpec spec{.mesh = {.world_size = 8, .shard_size = 4, .replicas = 2}, .clips_grads = false};
  // The shards: 13 * 1 MB, of which 2 * 1/2 is sent.
  expect_volume(volume_of_step(thirteen_units(kMega, 4, Strategy::hybrid_shard), spec, PassProfile::chain(13)),
                {{Collective::all_gather, Axis::shard, 25, 100 * kMega, 75 * kMega},
                 {Collective::reduce_scatter, Axis::shard, 13, 52 * kMega, 39 * kMega},
                 {Collective::all_reduce, Axis::replicate, 13, 13 * kMega, 13 * kMega}});
}

TEST(Volume, D1_NoShardAllReducesWholeGradients) {
  const StepSpec replicated{.mesh = {.world_size = 2, .shard_size = 1, .replicas = 2}, .clips_grads = false};
  const std::vector<UnitSpec> units = thirteen_units(kMega, 1, Strategy::no_shard);
  expect_volume(volume_of_step(units, replicated, PassProfile::chain(13)),
                {{Collective::all_reduce, Axis::replicate, 13, 52 * kMega, 52 * kMega}});
  // The same units on a sharded mesh: once, over the world.
  const StepSpec sharded{.mesh = {.world_size = 2, .shard_size = 2, .replicas = 1}, .clips_grads = false};
  expect_volume(volume_of_step(units, sharded, PassProfile::chain(13)),
                {{Collective::all_reduce, Axis::world, 13, 52 * kMega, 52 * kMega}});
}

TEST(Volume, D1_AccumulationWithAndWithoutSynchronisation) {
  StepSpec spec{.mesh = {.world_size = 2, .shard_size = 2}, .micro_batches = 3, .clips_grads = false};
  const auto calls = [&](Strategy strategy, bool no_sync) {
    spec.no_sync = no_sync;
    std::vector<std::int64_t> found;
    for (const AxisVolume& v : volume_of_step(thirteen_units(kMega, 2, strategy), spec, PassProfile::chain(13))) {
      found.push_back(v.calls);
    }
    return found;
  };
  EXPECT_THAT(calls(Strategy::full_shard, false), ::testing::ElementsAre(3 * 25, 3 * 13));
  EXPECT_THAT(calls(Strategy::full_shard, true), ::testing::ElementsAre(3 * 25, 13));
  EXPECT_THAT(calls(Strategy::shard_grad_op, false), ::testing::ElementsAre(3 * 13, 3 * 13));
  EXPECT_THAT(calls(Strategy::shard_grad_op, true), ::testing::ElementsAre(13, 13));
}

TEST(Volume, LowPrecisionHalvesTheBytesOfItsSide) {
  const StepSpec spec{.mesh = {.world_size = 2, .shard_size = 2}, .clips_grads = false};
  std::vector<UnitSpec> units = thirteen_units(kMega, 2, Strategy::full_shard);
  for (UnitSpec& unit : units) unit.param_dtype = DType::bf16;
  expect_volume(volume_of_step(units, spec, PassProfile::chain(13)),
                {{Collective::all_gather, Axis::shard, 25, 50 * kMega, 25 * kMega},
                 {Collective::reduce_scatter, Axis::shard, 13, 52 * kMega, 26 * kMega}});
}

TEST(Volume, OneRankSendsNothing) {
  const std::vector<AxisVolume> found = volume_of_step(thirteen_units(kMega, 1, Strategy::full_shard), {}, PassProfile::chain(13));
  EXPECT_TRUE(found.empty());
  EXPECT_EQ(total_sent_bytes(found), 0);
  EXPECT_EQ(format_volume(found), "no communication\n");
}

TEST(Volume, Prints) {
  const StepSpec spec{.mesh = {.world_size = 4, .shard_size = 4}};
  const std::string text = format_volume(volume_of_step(thirteen_units(1 << 20, 4, Strategy::full_shard), spec, PassProfile::chain(13)));
  EXPECT_THAT(text, HasSubstr("all_gather       shard           4       25       75.0 MiB"));
  EXPECT_THAT(text, HasSubstr("total                                            114.0 MiB"));
}

}  // namespace
}  // namespace mica::plan
