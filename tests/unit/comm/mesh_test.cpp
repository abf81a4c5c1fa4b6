// SPDX-License-Identifier: Apache-2.0
#include "mica/comm/mesh.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mica/comm/fake_group.hpp"
#include "mica/comm/mpi_group.hpp"
#include "mica/core/error.hpp"

#include "testing/local_group.hpp"

namespace mica {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// counts[k] ranks on node k, hosts "a", "b", ...
std::vector<RankPlace> nodes(const std::vector<int>& counts) {
  std::vector<RankPlace> places;
  for (std::size_t node = 0; node < counts.size(); ++node) {
    for (int local = 0; local < counts[node]; ++local) {
      places.push_back({static_cast<int>(places.size()), std::string(1, static_cast<char>('a' + node)), static_cast<int>(node), local});
    }
  }
  return places;
}

constexpr ShardSize kWorld{};
constexpr ShardSize kNode{ShardSize::Kind::node, 0};
constexpr ShardSize number(int n) { return {ShardSize::Kind::number, n}; }

TEST(MeshGeometry, ShardAndReplicateAxes) {
  const auto six = MeshGeometry::make(nodes({6}), number(3));
  EXPECT_EQ(six.shard_size, 3);
  EXPECT_EQ(six.replicas, 2);
  EXPECT_EQ(six.shard_rank(4), 1);
  EXPECT_EQ(six.replica_rank(4), 1);
  EXPECT_EQ(MeshGeometry::make(nodes({6}), kWorld).shard_size, 6);
  EXPECT_EQ(MeshGeometry::make(nodes({3, 3}), kNode).shard_size, 3);
  EXPECT_EQ(MeshGeometry::make(nodes({3, 3}), kNode).replicas, 2);
  EXPECT_EQ(MeshGeometry::make(nodes({4}), number(1)).replicas, 4);
  EXPECT_EQ(MeshGeometry::make(nodes({1}), kNode).world_size, 1);
}

std::string refusal_of(const std::vector<RankPlace>& places, ShardSize size) {
  try {
    (void)MeshGeometry::make(places, size);
  } catch (const ConfigError& e) {
    return e.what();
  }
  ADD_FAILURE() << "expected a ConfigError";
  return {};
}

TEST(MeshGeometry, RefusalsSayWhatIsPossible) {
  EXPECT_THAT(refusal_of(nodes({6}), number(4)),
              AllOf(HasSubstr("shard_size=4"), HasSubstr("the 6 ranks"), HasSubstr("valid sizes: 1, 2, 3, 6")));
  EXPECT_THAT(refusal_of(nodes({6}), number(0)), HasSubstr("valid sizes"));
  EXPECT_THAT(refusal_of(nodes({6}), number(-2)), HasSubstr("valid sizes"));
  EXPECT_THAT(refusal_of(nodes({6}), number(12)), HasSubstr("valid sizes"));
  EXPECT_THAT(refusal_of(nodes({3, 1}), kNode), AllOf(HasSubstr("a has 3, b has 1"), HasSubstr("1, 2, 4")));
  EXPECT_THAT(refusal_of({}, kWorld), HasSubstr("no ranks"));
}

TEST(Mesh, ShardGroupsThatSpanNodesAreNamedWithTheirHosts) {
  const auto check = [](const std::vector<int>& counts, int shard_size) {
    const std::vector<RankPlace> places = nodes(counts);
    Mesh(make_fake_group(0, static_cast<int>(places.size()), nullptr), MeshGeometry::make(places, number(shard_size)), places)
        .require_shards_inside_nodes("mesh.backend = shared");
  };
  check({4}, 4);
  check({2, 2}, 2);
  check({2, 2}, 1);
  check({4, 2}, 2);
  for (const auto& [counts, shard_size, group] :
       {std::tuple<std::vector<int>, int, std::string>{{2, 2}, 4, "{0,1,2,3} on a, b"}, {{3, 3}, 2, "{2,3} on a, b"}}) {
    try {
      check(counts, shard_size);
      ADD_FAILURE() << "not refused: " << group;
    } catch (const ConfigError& e) {
      EXPECT_THAT(e.what(), AllOf(HasSubstr("mesh.backend = shared"), HasSubstr("but one is " + group), HasSubstr("mesh.shard_size=node")));
    }
  }
}

TEST(MeshGeometry, KnowsTheFirstReplicaOnSeveralNodes) {
  const auto found = [](const std::vector<int>& counts, int shard_size) {
    return MeshGeometry::make(nodes(counts), number(shard_size)).replica_over_nodes(nodes(counts));
  };
  EXPECT_EQ(found({4}, 4), std::nullopt);
  EXPECT_EQ(found({2, 2}, 2), std::nullopt);
  EXPECT_EQ(found({1, 1, 1}, 1), std::nullopt);
  EXPECT_EQ(found({2, 2}, 4), 0);
  EXPECT_EQ(found({3, 3}, 2), 1);
  EXPECT_EQ(found({4, 4, 3, 5}, 4), 2);
}

TEST(MeshOrder, SortsByNodeThenLocalRank) {
  // mpirun --map-by node: world ranks go round the nodes.
  std::vector<RankPlace> places{{0, "a", 0, 0}, {1, "b", 1, 0}, {2, "a", 0, 1}, {3, "b", 1, 1}};
  std::vector<int> order;
  for (const RankPlace& place : mesh_order(places)) order.push_back(place.world_rank);
  EXPECT_THAT(order, ElementsAre(0, 2, 1, 3));
}

/// The members of a group as everybody in it tells them.
std::vector<int> members_of(ProcessGroup& group, int my_rank, Stream& s) {
  std::vector<std::int32_t> all(static_cast<std::size_t>(group.num_ranks()));
  const std::int32_t mine = my_rank;
  group.all_gather(s, "members", {&mine, Shape{1}, DType::i32}, {all.data(), Shape{group.num_ranks()}, DType::i32});
  s.synchronize();
  return {all.begin(), all.end()};
}

TEST(Mesh, GroupsAreTheAxes) {
  run_local_ranks(6, [](std::unique_ptr<ProcessGroup> world) {
    const int rank = world->rank();
    const Mesh mesh(std::move(world), MeshGeometry::make(nodes({3, 3}), kNode), nodes({3, 3}));
    const auto stream = make_cpu_stream("comm", StreamMode::inlined);
    EXPECT_EQ(mesh.rank(), rank);
    EXPECT_EQ(mesh.shard().rank(), rank % 3);
    EXPECT_EQ(mesh.replicate().rank(), rank / 3);
    EXPECT_THAT(members_of(mesh.shard(), rank, *stream), rank < 3 ? ElementsAre(0, 1, 2) : ElementsAre(3, 4, 5));
    EXPECT_THAT(members_of(mesh.replicate(), rank, *stream), ElementsAre(rank % 3, rank % 3 + 3));
    EXPECT_EQ(mesh.describe(), "mesh 2 x 3 (replicate x shard), shard groups: {0,1,2} on a; {3,4,5} on b");
  });
}

// As MPI counts them, and reports of slow and lost ranks.
TEST(Mesh, GroupsAreToldInWorldRanks) {
  const std::vector<RankPlace> dealt_out = mesh_order({{0, "a", 0, 0}, {1, "b", 1, 0}, {2, "a", 0, 1}, {3, "b", 1, 1}});
  run_local_ranks(4, [&](std::unique_ptr<ProcessGroup> world) {
    const Mesh mesh(std::move(world), MeshGeometry::make(dealt_out, kNode), dealt_out);
    EXPECT_EQ(mesh.describe(), "mesh 2 x 2 (replicate x shard), shard groups: {0,2} on a; {1,3} on b");
    EXPECT_EQ(mesh.world_rank_of(1), 2);
  });
}

TEST(Mesh, AnAxisOfOneHasAGroupOfOne) {
  run_local_ranks(2, [](std::unique_ptr<ProcessGroup> world) {
    const Mesh mesh(std::move(world), {2, 1, 2});
    EXPECT_EQ(mesh.shard().num_ranks(), 1);
    EXPECT_EQ(mesh.replicate().num_ranks(), 2);
    EXPECT_EQ(mesh.describe(), "mesh 2 x 1 (replicate x shard), shard groups: {0}; {1}");
  });
}

TEST(Mesh, FakeMeshesOfAnySize) {
  FakeRecorder recorder;
  const Mesh mesh(make_fake_group(77, 128, &recorder), {128, 16, 8});
  EXPECT_EQ(mesh.shard_rank(), 13);
  EXPECT_EQ(mesh.replica_rank(), 4);
  EXPECT_EQ(mesh.shard().num_ranks(), 16);
  EXPECT_EQ(mesh.shard().rank(), 13);
  EXPECT_EQ(mesh.replicate().num_ranks(), 8);
  EXPECT_EQ(mesh.replicate().rank(), 4);
  EXPECT_THAT(mesh.describe(), HasSubstr("{0,1,...,15}; {16,17,...,31};"));
}

TEST(Mesh, MustFitItsWorld) {
  EXPECT_THROW(Mesh(make_fake_group(0, 4, nullptr), {6, 3, 2}), ConfigError);
  EXPECT_THROW(Mesh(make_fake_group(0, 6, nullptr), {6, 4, 2}), ConfigError);
  EXPECT_THROW(Mesh(make_fake_group(0, 6, nullptr), {6, 3, 2}, nodes({3})), ConfigError);
}

TEST(MpiStaging, IsTheWrittenFormula) {
  const MpiGroupOptions defaults;
  // 1000 elements a slice, 4 ranks, 4 bytes.
  EXPECT_EQ(mpi_staging_bytes(Collective::reduce_scatter, 4000, DType::f32, 4, defaults), 16000);
  EXPECT_EQ(mpi_staging_bytes(Collective::reduce_scatter, 4000, DType::bf16, 4, defaults), 8000);
  // Long ones: two blocks of 0.5 MiB over all ranks, of at least 64 KiB a rank, at most staging_bytes.
  EXPECT_EQ(mpi_staging_bytes(Collective::reduce_scatter, 40'000'000, DType::f32, 4, defaults), 1 << 20);
  EXPECT_EQ(mpi_staging_bytes(Collective::reduce_scatter, 64'000'000, DType::f32, 64, defaults), 2 * 64 * (64 << 10));
  EXPECT_EQ(mpi_staging_bytes(Collective::reduce_scatter, 40'000'000, DType::f32, 4, {.staging_bytes = 4096}), 4096);
  EXPECT_EQ(mpi_staging_bytes(Collective::reduce_scatter, 40'000'000, DType::f32, 4, {.max_call_bytes = 1024}), 2 * 1024);
  // Small all-reduces gather everything; 1025 elements over 4 ranks are slices of up to 257.
  EXPECT_EQ(mpi_staging_bytes(Collective::all_reduce, 1024, DType::f32, 4, defaults), 16384);
  EXPECT_EQ(mpi_staging_bytes(Collective::all_reduce, 1025, DType::f32, 4, defaults), 257 * 4 * 4);
  EXPECT_EQ(mpi_staging_bytes(Collective::all_gather, 4000, DType::f32, 4, defaults), 0);
  EXPECT_EQ(mpi_staging_bytes(Collective::reduce_scatter, 4000, DType::f32, 1, defaults), 0);
  EXPECT_EQ(mpi_staging_bytes(Collective::all_reduce, 0, DType::f32, 4, defaults), 0);
}

}  // namespace
}  // namespace mica
