// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mica/comm/flight_log.hpp"
#include "mica/comm/hang_record.hpp"
#include "mica/comm/mpi_group.hpp"
#include "mica/comm/watchdog.hpp"
#include "mica/core/error.hpp"

#include "support/pmpi_counter.hpp"

namespace mica {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

std::vector<int> members_of(ProcessGroup& group, int mesh_rank) {
  const auto stream = make_cpu_stream("comm", StreamMode::inlined);
  std::vector<std::int32_t> all(static_cast<std::size_t>(group.num_ranks()));
  const std::int32_t mine = mesh_rank;
  group.all_gather(*stream, "members", {&mine, Shape{1}, DType::i32}, {all.data(), Shape{group.num_ranks()}, DType::i32});
  stream->synchronize();
  return {all.begin(), all.end()};
}

TEST(Places, AreOneNodeHere) {
  const auto world = mpi::Communicator::world();
  const auto places = find_places(world);
  ASSERT_EQ(places.size(), static_cast<std::size_t>(world.num_ranks()));
  for (int r = 0; r < world.num_ranks(); ++r) {
    const RankPlace& place = places[static_cast<std::size_t>(r)];
    EXPECT_EQ(place.world_rank, r);
    EXPECT_EQ(place.node, 0);
    EXPECT_EQ(place.local_rank, r);
    EXPECT_EQ(place.host, places.front().host);
    EXPECT_FALSE(place.host.empty());
  }
}

// In Open MPI that compares every rank with every rank.
TEST(MpiMesh, IsMadeWithoutTranslatingRanks) {
  const testing::MpiCallCounts before = testing::mpi_calls();
  const auto world = mpi::Communicator::world();
  const Watchdog watchdog(world);
  const auto pool = make_cpu_pool();
  const Mesh mesh = make_mpi_mesh(world, {ShardSize::Kind::number, 1}, *pool);
  const auto again = mesh.world().duplicate("again");
  EXPECT_EQ((testing::mpi_calls() - before).of(testing::MpiCall::translate_ranks), 0);
}

int num_recorded_communicators() {
  const std::shared_ptr<FlightLog> log = FlightLog::of_process();
  return static_cast<int>(std::ranges::count_if(log->groups(), [](const FlightGroup& group) {
    return group.use.load() == static_cast<std::uint8_t>(FlightGroup::Use::open) && group.name.get() == HangRecord::kHostGroup;
  }));
}

// In a large job the watchdog's log has few places.
TEST(MpiMesh, ACommunicatorIsRecordedOnceTheHostUsesIt) {
  const auto world = mpi::Communicator::world();
  const Watchdog watchdog(world);
  const auto pool = make_cpu_pool();
  const auto stream = make_cpu_stream("compute", StreamMode::inlined);
  const Mesh mesh = make_mpi_mesh(world, {}, *pool, {.shares_memory = true});
  const auto again = mesh.shard().duplicate("again");
  EXPECT_EQ(num_recorded_communicators(), 0);
  for (int i = 0; i < 2; ++i) {
    const SharedParts parts = mesh.shard().allocate_parts(*pool, 4, DType::f32, MemoryRole::sharded_param, *stream);
    EXPECT_EQ(num_recorded_communicators(), world.num_ranks() > 1 ? 1 : 0);
  }
}

TEST(MpiMesh, AShardSizeOf2ReallyFormsItsGroups) {
  const auto world = mpi::Communicator::world();
  const auto pool = make_cpu_pool();
  const int n = world.num_ranks();
  if (n % 2 != 0) {
    try {
      (void)make_mpi_mesh(world, {ShardSize::Kind::number, 2}, *pool);
      FAIL() << "2 does not divide " << n;
    } catch (const ConfigError& e) {
      EXPECT_THAT(e.what(), HasSubstr(n == 1 ? "valid sizes: 1" : "valid sizes: 1, 3"));
    }
    return;
  }
  const Mesh mesh = make_mpi_mesh(world, {ShardSize::Kind::number, 2}, *pool);
  EXPECT_EQ(mesh.rank(), world.rank());
  EXPECT_EQ(mesh.shard_size(), 2);
  EXPECT_EQ(mesh.replicas(), n / 2);
  if (n == 2) {
    EXPECT_THAT(members_of(mesh.shard(), mesh.rank()), ElementsAre(0, 1));
    EXPECT_THAT(members_of(mesh.replicate(), mesh.rank()), ElementsAre(mesh.rank()));
  } else {
    ASSERT_EQ(n, 4);
    EXPECT_THAT(members_of(mesh.shard(), mesh.rank()), mesh.rank() < 2 ? ElementsAre(0, 1) : ElementsAre(2, 3));
    EXPECT_THAT(members_of(mesh.replicate(), mesh.rank()), mesh.rank() % 2 == 0 ? ElementsAre(0, 2) : ElementsAre(1, 3));
    EXPECT_THAT(mesh.describe(), HasSubstr("mesh 2 x 2 (replicate x shard), shard groups: {0,1} on "));
  }
}

TEST(MpiMesh, WorldNodeAndOne) {
  const auto world = mpi::Communicator::world();
  const auto pool = make_cpu_pool();
  const int n = world.num_ranks();
  for (const auto kind : {ShardSize::Kind::world, ShardSize::Kind::node}) {  // one node here
    const Mesh mesh = make_mpi_mesh(world, {kind, 0}, *pool);
    EXPECT_EQ(mesh.shard().num_ranks(), n);
    EXPECT_EQ(mesh.replicate().num_ranks(), 1);
  }
  const Mesh mesh = make_mpi_mesh(world, {ShardSize::Kind::number, 1}, *pool);
  EXPECT_EQ(mesh.shard().num_ranks(), 1);
  EXPECT_EQ(mesh.replicate().num_ranks(), n);
  EXPECT_EQ(mesh.places().size(), static_cast<std::size_t>(n));
}

TEST(MpiMesh, FollowsTheMeshOrderWhateverThePlacement) {
  // As if the ranks had been dealt out in turn to two nodes (an odd number: to one), and backwards within a node: the mesh order
  // of four is 2, 0, 3, 1.
  const auto world = mpi::Communicator::world();
  const int n = world.num_ranks();
  const int nodes = n % 2 == 0 ? 2 : 1;
  const int per_node = n / nodes;
  const auto pool = make_cpu_pool();
  std::vector<RankPlace> places;
  for (int r = 0; r < n; ++r) places.push_back({r, r % nodes == 0 ? "even" : "odd", r % nodes, per_node - 1 - r / nodes});
  const Mesh mesh = make_mpi_mesh(world, {ShardSize::Kind::node, 0}, *pool, {}, places);
  EXPECT_EQ(mesh.rank(), world.rank() % nodes * per_node + per_node - 1 - world.rank() / nodes);
  EXPECT_EQ(mesh.places()[static_cast<std::size_t>(mesh.rank())].world_rank, world.rank());
  std::vector<int> same_node;
  for (int r = n - nodes + world.rank() % nodes; r >= 0; r -= nodes) same_node.push_back(r);
  EXPECT_THAT(members_of(mesh.shard(), world.rank()), ElementsAreArray(same_node));
  EXPECT_THAT(mesh.describe(), HasSubstr(nodes == 2 ? "on even; " : "on even"));
}

}  // namespace
}  // namespace mica
