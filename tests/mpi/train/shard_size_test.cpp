// SPDX-License-Identifier: Apache-2.0
// A2: what mesh.shard_size = auto makes of ranks on several nodes.
#include <vector>

#include <gtest/gtest.h>

#include "mica/comm/mpi_group.hpp"
#include "mica/train/setup.hpp"

namespace mica::train {
namespace {

/// The shard group's world ranks, of a mesh whose ranks are dealt out to nodes in turn.
std::vector<std::int32_t> shard_group(const std::string& strategy, int num_nodes) {
  const auto world = mpi::Communicator::world();
  std::vector<RankPlace> places;
  for (int r = 0; r < world.num_ranks(); ++r) places.push_back({r, fmt::format("n{}", r % num_nodes), r % num_nodes, r / num_nodes});
  Config config;
  config.fsdp.strategy = strategy;
  const auto pool = make_cpu_pool();
  const Mesh mesh = make_mpi_mesh(world, shard_size_of(config), *pool, {}, places);
  const auto stream = make_cpu_stream("compute", StreamMode::inlined);
  std::vector<std::int32_t> members(static_cast<std::size_t>(mesh.shard().num_ranks()));
  const std::int32_t mine = world.rank();
  mesh.shard().all_gather(*stream, "members", {&mine, Shape{1}, DType::i32}, {members.data(), Shape{mesh.shard().num_ranks()}, DType::i32});
  stream->synchronize();
  EXPECT_EQ(mesh.replicas() * mesh.shard_size(), world.num_ranks());
  return members;
}

TEST(ShardSize, A2_AutoIsTheNodeForHybridStrategiesAndTheWorldForOthers) {
  const auto world = mpi::Communicator::world();
  const int num_ranks = world.num_ranks();
  const int num_nodes = num_ranks % 2 == 0 ? 2 : 1;
  std::vector<std::int32_t> of_node, of_world;
  for (int r = world.rank() % num_nodes; r < num_ranks; r += num_nodes) of_node.push_back(r);
  for (int node = 0; node < num_nodes; ++node) {
    for (int r = node; r < num_ranks; r += num_nodes) of_world.push_back(r);
  }
  EXPECT_EQ(shard_group("hybrid_shard", num_nodes), of_node);
  EXPECT_EQ(shard_group("hybrid_shard_zero2", num_nodes), of_node);
  EXPECT_EQ(shard_group("full_shard", num_nodes), of_world);
  EXPECT_EQ(shard_group("shard_optim", num_nodes), of_world);
}

}  // namespace
}  // namespace mica::train
