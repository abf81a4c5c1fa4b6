// SPDX-License-Identifier: Apache-2.0
// Replicas that no longer hold the same bits are found and named.
#include "mica/fsdp/replica_drift.hpp"

#include <atomic>
#include <bit>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mica/fsdp/wrap_policy.hpp"
#include "mica/nn/models/mlp.hpp"

#include "testing/local_group.hpp"

namespace mica::fsdp {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// One rank's sharded model.
struct Replica {
  Replica(std::unique_ptr<ProcessGroup> world, int shard_size, Strategy strategy)
      : mesh(std::move(world), geometry(shard_size)), device_mesh(mesh, *pool, *kernels, Streams::make(StreamMode::inlined)) {
    root = &auto_wrap(model, device_mesh, {.strategy = strategy}, wrap_types({"mlp_block"}));
    root->initialize(3);
  }
  MeshGeometry geometry(int shard_size) { return {.world_size = num_ranks, .shard_size = shard_size, .replicas = num_ranks / shard_size}; }
  TensorView master(std::size_t unit) { return root->units()[unit]->storage()->write_master(); }
  void flip(std::size_t unit, std::int64_t element) {
    float& x = master(unit).as<float>()[element];
    x = std::bit_cast<float>(std::bit_cast<std::uint32_t>(x) ^ 1U);
  }

  int num_ranks = 4;
  std::unique_ptr<Pool> pool = make_cpu_pool();
  std::unique_ptr<Kernels> kernels = make_cpu_kernels(*pool);
  Mesh mesh;
  DeviceMesh device_mesh;
  nn::Mlp model{{.layers = 2, .width = 6, .intermediate_size = 7, .vocab_size = 11}};
  Root* root = nullptr;
};

/// What each of 4 ranks throws after `damage` on it, "" for nothing.
std::array<std::string, 4> errors_after(int shard_size, Strategy strategy, const std::function<void(Replica&)>& damage) {
  std::array<std::string, 4> texts;
  run_local_ranks(4, [&](std::unique_ptr<ProcessGroup> world) {
    Replica replica(std::move(world), shard_size, strategy);
    check_replicas(*replica.root);
    damage(replica);
    try {
      check_replicas(*replica.root);
    } catch (const DesyncError& e) {
      EXPECT_EQ(e.exit_code(), ExitCode::runtime_failure);
      texts[static_cast<std::size_t>(replica.mesh.rank())] = e.what();
    }
  });
  return texts;
}

TEST(ReplicaDrift, OneBitOfOneRankNamesUnitShardAndRanksOnEveryRank) {
  const auto texts = errors_after(2, Strategy::hybrid_shard, [](Replica& replica) {
    if (replica.mesh.rank() == 3) replica.flip(1, 17);
  });
  EXPECT_THAT(texts[0],
              AllOf(HasSubstr("unit blocks.0, shard 1 of 2,"), HasSubstr(" on rank 1"), HasSubstr(" on rank 3"), HasSubstr("checkpoint")));
  for (const std::string& text : texts) EXPECT_EQ(text, texts[0]);
}

TEST(ReplicaDrift, RanksThatAgreeAreNamedTogether) {
  for (const auto& [shard_size, strategy] : {std::pair{1, Strategy::no_shard}, {4, Strategy::no_shard}}) {
    const auto texts = errors_after(shard_size, strategy, [](Replica& replica) {
      if (replica.mesh.rank() == 2) replica.flip(0, 0);
    });
    EXPECT_THAT(texts[1], AllOf(HasSubstr("unit root, shard 0 of 1,"), HasSubstr(" on ranks 0, 1, 3"), HasSubstr(" on rank 2")));
    EXPECT_EQ(texts[3], texts[1]);
  }
}

TEST(ReplicaDrift, ReplicasThatChangeAlikeAreFine) {
  for (const auto& text : errors_after(2, Strategy::hybrid_shard_zero2, [](Replica& replica) { replica.flip(2, 3); })) EXPECT_EQ(text, "");
}

TEST(ReplicaDrift, WithoutReplicasNothingIsSent) {
  run_local_ranks(4, [](std::unique_ptr<ProcessGroup> world) {
    Replica replica(std::move(world), 4, Strategy::full_shard);
    check_replicas(*replica.root);
    EXPECT_EQ(replica.device_mesh.metrics_group().counts().of(Collective::all_gather), 0);
  });
  run_local_ranks(4, [](std::unique_ptr<ProcessGroup> world) {
    Replica replica(std::move(world), 2, Strategy::hybrid_shard);
    check_replicas(*replica.root);
    EXPECT_EQ(replica.device_mesh.metrics_group().counts().of(Collective::all_gather), 1);
    EXPECT_EQ(replica.device_mesh.metrics_group().counts().bytes_of(Collective::all_gather), 4 * 3 * 8) << "3 units on 4 ranks";
  });
}

}  // namespace
}  // namespace mica::fsdp
