// SPDX-License-Identifier: Apache-2.0
// When a replica is lost, those that are left give the step up and do it again, as if they had been alone from the start.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "unit/optim/stepped_weights.hpp"

namespace mica::optim {
namespace {

using namespace steps;  // NOLINT(google-build-using-namespace)

/// Steps of two shard ranks, in as many replicas as the world has room for. Replicas have the same gradients, and counts
/// of ranks are powers of two, so that fewer replicas give the same bits.
struct Rank {
  Rank(std::unique_ptr<ProcessGroup> world, StreamMode mode, fsdp::Strategy strategy)
      : shard_rank(world->rank() % 2),
        model(std::move(world), odd_units(), {.fsdp = {.strategy = strategy}, .mode = mode, .shard_size = 2}),
        optimizer(make_adamw(model.root(), {})) {}

  void step(int t) {
    set_grads(model, 10 * t + shard_rank);
    model.pass();
    optimizer->step({.lr = 0.1});
    model.root().zero_grad();
    model.device_mesh().compute().synchronize();
  }

  int shard_rank;
  ShardedWeights model;
  std::unique_ptr<Optimizer> optimizer;
};

constexpr int kLostInStep = 3, kNumSteps = 5;

std::vector<Values> undisturbed(StreamMode mode, fsdp::Strategy strategy) {
  std::vector<Values> found;
  run_local_ranks(2, [&](auto world) {
    const bool is_first = world->rank() == 0;
    Rank rank(std::move(world), mode, strategy);
    for (int t = 1; t <= kNumSteps; ++t) rank.step(t);
    if (is_first) found = snapshot(rank.model, *rank.optimizer);
  });
  return found;
}

/// Ranks 2 and 3 go away in front of a step.
std::vector<Values> with_a_lost_replica(StreamMode mode, fsdp::Strategy strategy, bool shares_memory) {
  std::vector<Values> found;
  run_local_ranks(4,
                  [&](auto world) {
                    const int me = world->rank();
                    const std::vector<int> mine = me < 2 ? std::vector{0, 1} : std::vector{2, 3};
                    auto left = world->subgroup(mine, "left");
                    Rank rank(std::move(world), mode, strategy);
                    for (int t = 1; t <= kNumSteps; ++t) {
                      if (t == kLostInStep && me >= 2) return;
                      try {
                        rank.step(t);
                        EXPECT_NE(t, kLostInStep);
                      } catch (const Error&) {
                        EXPECT_EQ(t, kLostInStep);
                        rank.model.device_mesh().abort("ranks 2 and 3 are lost");
                        rank.model.root().abandon_step();
                        rank.model.device_mesh().rebuild(std::move(left), {.world_size = 2, .shard_size = 2, .replicas = 1});
                        EXPECT_EQ(rank.model.device_mesh().mesh().epoch(), 1);
                        rank.step(t);
                      }
                    }
                    EXPECT_EQ(rank.optimizer->num_steps(), kNumSteps);
                    if (me == 0) found = snapshot(rank.model, *rank.optimizer);
                  },
                  {.shares_memory = shares_memory});
  return found;
}

TEST(FewerRanks, TheStepIsDoneAgainWithoutTheLostReplica) {
  for (const StreamMode mode : {StreamMode::inlined, StreamMode::threaded}) {
    for (const fsdp::Strategy strategy : {fsdp::Strategy::hybrid_shard, fsdp::Strategy::hybrid_shard_zero2}) {
      for (const bool shares_memory : {false, true}) {
        EXPECT_TRUE(same_bits(with_a_lost_replica(mode, strategy, shares_memory), undisturbed(mode, strategy)))
            << fsdp::strategy_name(strategy) << (shares_memory ? ", masters shared" : "");
      }
    }
  }
}

// Rank 0 waits in a group to which rank 1 never comes.
TEST(FewerRanks, AbortReachesAllGroups) {
  run_local_ranks(
      2,
      [](auto world) {
        const auto other = world->duplicate("other");
        Rank rank(std::move(world), StreamMode::threaded, fsdp::Strategy::full_shard);
        fsdp::DeviceMesh& device_mesh = rank.model.device_mesh();
        const bool waits = device_mesh.mesh().rank() == 0;
        const auto stream = make_cpu_stream("waits", StreamMode::threaded);
        for (ProcessGroup* group : {&device_mesh.unshard_group(), &device_mesh.reduce_group(), &device_mesh.all_ranks_group(),
                                    &device_mesh.agreement_group(), &device_mesh.shard_norm_group(), &device_mesh.metrics_group()}) {
          if (!waits) continue;
          group->barrier(*stream, "nobody comes");
          device_mesh.abort("rank 1 is lost");
          try {
            stream->synchronize();
            ADD_FAILURE() << group->name();
          } catch (const Error& e) {
            EXPECT_THAT(e.what(), ::testing::HasSubstr("rank 1 is lost"));
          }
          stream->drain_and_clear_error();
        }
        other->barrier(*stream, "end");
        stream->synchronize();
      },
      {.stall_timeout = std::chrono::seconds(10)});
}

// What is left of two replicas may make one, but where its members found each other's shards in memory, one of them is lost.
TEST(FewerRanks, ReplicasThatShareMemoryLeaveWhole) {
  for (const bool shares_memory : {false, true}) {
    run_local_ranks(4,
                    [&](auto world) {
                      const int me = world->rank();
                      auto mixed = world->subgroup(me == 0 || me == 3 ? std::vector{0, 3} : std::vector{2, 1}, "mixed");
                      Rank rank(std::move(world), StreamMode::threaded, fsdp::Strategy::hybrid_shard);
                      rank.step(1);
                      const auto rebuild = [&] {
                        rank.model.device_mesh().rebuild(std::move(mixed), {.world_size = 2, .shard_size = 2, .replicas = 1});
                      };
                      if (shares_memory) {
                        EXPECT_THROW(rebuild(), ConfigError);
                      } else {
                        rebuild();
                      }
                      EXPECT_EQ(rank.model.device_mesh().mesh().epoch(), shares_memory ? 0 : 1);
                      rank.step(2);
                    },
                    {.shares_memory = shares_memory});
  }
}

// One rank's host had counted more rounds of the masters that it shares when the step was given up.
TEST(FewerRanks, RanksThatHadComeDifferentlyFarGoOnTogether) {
  run_local_ranks(2,
                  [](auto world) {
                    const bool is_ahead = world->rank() == 1;
                    const auto meet = world->duplicate("meet");
                    auto again = world->duplicate("again");
                    Rank rank(std::move(world), StreamMode::threaded, fsdp::Strategy::full_shard);
                    rank.step(1);
                    fsdp::DeviceMesh& device_mesh = rank.model.device_mesh();
                    fsdp::Unit& unit = *rank.model.root().units()[1];
                    ASSERT_TRUE(unit.storage()->shares_masters());
                    for (int i = 0; is_ahead && i < 3; ++i) {  // nobody else comes
                      rank.model.root().schedule().unshard(unit);
                      unit.reshard();
                    }
                    device_mesh.abort("this step is given up");
                    rank.model.root().abandon_step();
                    const auto stream = make_cpu_stream("test", StreamMode::inlined);
                    meet->barrier(*stream, "all have given it up");
                    device_mesh.rebuild(std::move(again), {.world_size = 2, .shard_size = 2, .replicas = 1});
                    rank.step(2);
                    rank.step(3);
                    EXPECT_EQ(rank.optimizer->num_steps(), 3);
                  },
                  {.shares_memory = true});
}

TEST(FewerRanks, AnotherOrderOfShardsIsRefused) {
  for (const bool shares_memory : {false, true}) {
    run_local_ranks(2,
                    [](auto world) {
                      auto swapped = world->subgroup(std::vector{1, 0}, "swapped");
                      Rank rank(std::move(world), StreamMode::threaded, fsdp::Strategy::full_shard);
                      rank.step(1);
                      try {
                        rank.model.device_mesh().rebuild(std::move(swapped), {.world_size = 2, .shard_size = 2, .replicas = 1});
                        ADD_FAILURE() << "expected a ConfigError";
                      } catch (const ConfigError& e) {
                        EXPECT_THAT(e.what(), ::testing::HasSubstr("rank 0 of the rebuilt mesh would get shard 0, but it holds shard 1"));
                      }
                      EXPECT_EQ(rank.model.device_mesh().mesh().epoch(), 0);
                      rank.step(2);
                    },
                    {.shares_memory = shares_memory});
  }
}

TEST(FewerRanks, AnotherShardSizeIsRefused) {
  run_local_ranks(2, [](auto world) {
    auto alone = world->subgroup(std::vector{world->rank()}, "alone");
    Rank rank(std::move(world), StreamMode::inlined, fsdp::Strategy::full_shard);
    EXPECT_THROW(rank.model.device_mesh().rebuild(std::move(alone), {.world_size = 1, .shard_size = 1, .replicas = 1}), ConfigError);
    EXPECT_EQ(rank.model.device_mesh().mesh().epoch(), 0);
    rank.step(1);
  });
}

}  // namespace
}  // namespace mica::optim
