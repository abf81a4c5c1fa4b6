// SPDX-License-Identifier: Apache-2.0
// Groups whose ranks are said to be on several nodes ([Note: collectives by node]).
#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mica/comm/mpi_group.hpp"
#include "mica/core/error.hpp"

#include "support/collective_checks.hpp"
#include "support/mpi_test.hpp"
#include "support/pmpi_counter.hpp"

namespace mica {
namespace {

using testing::Data;
using ::testing::HasSubstr;
using testing::mpi_calls;
using testing::MpiCall;
using testing::MpiCallCounts;
using testing::MpiMessage;
using testing::rounded;
using testing::value_of;

using Nodes = std::vector<int>;  // by rank

/// In runs, in turn, uneven both ways, of three nodes: what mesh order makes, and what it does not.
std::vector<Nodes> layouts_of(int num_ranks) {
  switch (num_ranks) {
    case 2:
      return {{0, 1}, {0, 0}};
    case 3:
      return {{0, 0, 1}, {5, 2, 5}, {0, 1, 2}};
    case 4:
      return {{0, 0, 1, 1}, {0, 1, 0, 1}, {0, 0, 0, 1}, {0, 1, 1, 1}, {0, 0, 1, 2}, {3, 1, 2, 1}};
    default:
      return {{0, 0, 0, 1, 1, 1}, {0, 1, 0, 1, 0, 1}, {0, 0, 1, 1, 2, 2}, {0, 0, 0, 0, 1, 1}, {0, 1, 2, 2, 2, 2}};
  }
}

std::string name_of(const Nodes& nodes) { return ::testing::PrintToString(nodes); }

/// The nodes' members, nodes in the order of their lowest ranks: said a second time here.
std::vector<std::vector<int>> members_of(const Nodes& nodes) {
  std::vector<std::vector<int>> members;
  Nodes seen;
  for (std::size_t rank = 0; rank < nodes.size(); ++rank) {
    const auto node = std::find(seen.begin(), seen.end(), nodes[rank]) - seen.begin();
    if (node == std::ssize(seen)) {
      seen.push_back(nodes[rank]);
      members.emplace_back();
    }
    members[static_cast<std::size_t>(node)].push_back(static_cast<int>(rank));
  }
  return members;
}

/// Whether sums of slices this long are added up node by node.
bool adds_by_node(const Nodes& nodes, std::int64_t slice_bytes, DType dtype, std::int64_t longest_short) {
  const auto members = members_of(nodes);
  if (members.size() == 1 || members.size() == nodes.size() || slice_bytes <= longest_short || slice_bytes < 16) return false;
  if (dtype == DType::f32) return true;
  std::size_t by_node = 0, by_rank = 0;
  for (const auto& m : members) {
    by_node += 4 * (nodes.size() - m.size());
    by_rank += 2 * (nodes.size() - m.size()) * m.size();
  }
  return by_node < by_rank;
}

std::vector<float> values_of(std::size_t num_ranks, std::int64_t i, DType dtype) {
  std::vector<float> values(num_ranks);
  for (std::size_t r = 0; r < num_ranks; ++r) values[r] = rounded(value_of(static_cast<int>(r), i), dtype);
  return values;
}

/// @param members  of each node  @param values  of each rank
float summed_by_node(const std::vector<std::vector<int>>& members, const std::vector<float>& values) {
  float sum = 0;
  for (std::size_t node = 0; node < members.size(); ++node) {
    float of_node = values[static_cast<std::size_t>(members[node][0])];
    for (std::size_t k = 1; k < members[node].size(); ++k) of_node += values[static_cast<std::size_t>(members[node][k])];
    sum = node == 0 ? of_node : sum + of_node;
  }
  return sum;
}

/// Bits in the order that is promised, and near the sum in double.
void expect_sums(Data& result, const Nodes& nodes, std::int64_t begin, DType dtype, bool by_node) {
  const auto members = members_of(nodes);
  const double eps = dtype == DType::f32 ? 0x1p-23 : dtype == DType::f16 ? 0x1p-10 : 0x1p-7;
  Data expected(result.numel(), dtype);
  for (std::int64_t i = 0; i < result.numel(); ++i) {
    const std::vector<float> values = values_of(nodes.size(), begin + i, dtype);
    double exact = 0, size = 0;
    for (const double x : values) {
      exact += x;
      size += std::abs(x);
    }
    const double allowed = 0x1p-22 * static_cast<double>(nodes.size()) * size + eps * std::abs(exact) + 0x1p-24;
    ASSERT_NEAR(result.at(i), exact, allowed) << "element " << i;
    expected.set(i, by_node ? summed_by_node(members, values) : std::accumulate(values.begin() + 1, values.end(), values[0]));
  }
  EXPECT_EQ(result.first_difference(expected), -1);
}

class NodeGroup : public ::testing::Test {
 protected:
  const mpi::Communicator world = mpi::Communicator::world();
  std::unique_ptr<Pool> pool = make_cpu_pool();
  std::unique_ptr<Stream> stream = make_cpu_stream("comm", StreamMode::threaded);

  std::unique_ptr<ProcessGroup> make(const Nodes& nodes, MpiGroupOptions options = {}) {
    options.node = nodes[static_cast<std::size_t>(world.rank())];
    return make_mpi_group(world.duplicate(), *pool, "world", options);
  }

  void check(ProcessGroup& group, const Nodes& nodes, std::int64_t numel, const MpiGroupOptions& options) {
    const int num_ranks = group.num_ranks();
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      SCOPED_TRACE(::testing::Message() << name_of(nodes) << " slices of " << numel << " " << dtype_name(dtype));
      const bool by_node = adds_by_node(nodes, numel * dtype_bytes(dtype), dtype, options.max_collective_slice_bytes);
      for (const bool in_place : {false, true}) {
        testing::check_all_gather(group, *stream, numel, dtype, in_place);

        Data full(numel * num_ranks, dtype), shard(numel, dtype), unchanged(numel * num_ranks, dtype);
        full.fill_as(group.rank());
        unchanged.fill_as(group.rank());
        const TensorView own = full.view().slice(group.rank() * numel, numel);
        group.reduce_scatter(*stream, "reduce", full.view(), in_place ? own : shard.view());
        stream->synchronize();
        for (std::int64_t i = 0; in_place && i < numel; ++i) {
          shard.set(i, full.at(group.rank() * numel + i));
          full.set(group.rank() * numel + i, unchanged.at(group.rank() * numel + i));
        }
        expect_sums(shard, nodes, group.rank() * numel, dtype, by_node);
        EXPECT_EQ(full.first_difference(unchanged), -1);
        EXPECT_TRUE(full.guards_are_whole() && shard.guards_are_whole());
      }
      // Of a length that the ranks do not divide; the longest slice decides.
      Data data(numel * num_ranks + (numel == 0 ? 0 : num_ranks - 1), dtype);
      const bool is_small = data.view().bytes() <= kSmallAllReduceBytes &&
                            data.view().bytes() * num_ranks <= std::min(options.max_call_bytes, options.staging_bytes);
      data.fill_as(group.rank());
      group.all_reduce(*stream, "all", data.view(), ReduceOp::sum);
      stream->synchronize();
      expect_sums(data, nodes, 0, dtype,
                  !is_small && adds_by_node(nodes, (numel + 1) * dtype_bytes(dtype), dtype, options.max_collective_slice_bytes));
      EXPECT_TRUE(data.guards_are_whole());
      testing::check_all_reduce(group, *stream, numel * num_ranks + 1, dtype, ReduceOp::max);
      testing::check_all_to_all(group, *stream, numel, dtype);
      testing::check_broadcast(group, *stream, numel, dtype, num_ranks - 1);
    }
  }

  /// What this rank sends to other nodes, as MPI is told.
  std::int64_t bytes_that_cross(const Nodes& nodes, const std::function<void()>& collective) {
    std::int64_t bytes = 0;
    for (const MpiMessage& message : testing::messages_of([&] {
           collective();
           stream->synchronize();
         })) {
      const bool crosses = nodes[static_cast<std::size_t>(message.peer)] != nodes[static_cast<std::size_t>(world.rank())];
      if (message.call == MpiCall::isend && crosses) bytes += message.bytes;
    }
    return bytes;
  }
  std::int64_t of_all_on(const Nodes& nodes, int node, std::int64_t mine) {
    return world.all_sum(nodes[static_cast<std::size_t>(world.rank())] == node ? mine : 0);
  }
};

TEST_F(NodeGroup, OrdersOfAddingDiffer_OnSeveralRanks) {
  const auto members = members_of({0, 0, 1, 1});
  int num_differing = 0;
  for (std::int64_t i = 0; i < 1000; ++i) {
    num_differing += summed_by_node(members, values_of(4, i, DType::f32)) != testing::folded(4, i, DType::f32, ReduceOp::sum) ? 1 : 0;
  }
  EXPECT_GE(num_differing, 200) << "the checks here tell them apart";
}

TEST_F(NodeGroup, MovesAndAddsTheRightBits_OnSeveralRanks) {
  pool->poison(true);
  const std::int64_t least = std::int64_t{16} * world.num_ranks();
  const std::array<MpiGroupOptions, 4> ways{MpiGroupOptions{.max_collective_slice_bytes = 0},
                                            MpiGroupOptions{.staging_bytes = least, .max_collective_slice_bytes = 0},
                                            MpiGroupOptions{.max_call_bytes = 1024, .max_collective_slice_bytes = 0},
                                            MpiGroupOptions{.max_collective_slice_bytes = 100, .can_be_aborted = true}};
  const std::vector<std::int64_t> many{0, 1, 2, 3, 7, 65, 259}, few{1, 3, 9};
  for (const Nodes& nodes : layouts_of(world.num_ranks())) {
    for (const MpiGroupOptions& options : ways) {
      const auto group = make(nodes, options);
      (void)testing::take_largest_mpi_call();
      const bool by_element = options.staging_bytes == least;  // a message each
      for (const std::int64_t numel : by_element ? few : many) check(*group, nodes, numel, options);
      EXPECT_LE(testing::take_largest_mpi_call(), options.max_call_bytes);
      EXPECT_EQ(pool->stats().current, 0);
    }
    EXPECT_LE(pool->stats().peak, kSmallAllReduceBytes * world.num_ranks());
  }
}

TEST_F(NodeGroup, ManyBlocksOfTheDefaultSize_OnSeveralRanks) {
  for (const Nodes& nodes : layouts_of(world.num_ranks())) {
    const auto group = make(nodes);
    check(*group, nodes, 70'001, {});
  }
  EXPECT_LE(pool->stats().peak, 1 << 20) << "no more than within a node";
}

// Literal bytes: full buffers of four slices of 40,000 bytes (of six, in bf16 20,000).
TEST_F(NodeGroup, LongSlicesCrossToANodeOnce_OnSeveralRanks) {
  if (world.num_ranks() < 4) return;  // run on 4 and 6
  struct Case {
    Nodes nodes;
    DType dtype;
    int node;
    std::int64_t all_gather, reduce_scatter, all_reduce, all_to_all;
  };
  const std::vector<Case> cases = world.num_ranks() == 4
                                      ? std::vector<Case>{{{0, 0, 1, 1}, DType::f32, 0, 80'000, 80'000, 160'000, 160'000},
                                                          {{0, 1, 0, 1}, DType::f32, 1, 80'000, 80'000, 160'000, 160'000},
                                                          {{0, 0, 0, 1}, DType::f32, 0, 120'000, 40'000, 160'000, 120'000},
                                                          {{0, 0, 0, 1}, DType::f32, 1, 40'000, 120'000, 160'000, 120'000},
                                                          {{0, 0, 1, 1}, DType::bf16, 0, 40'000, 80'000, 120'000, 80'000}}
                                      : std::vector<Case>{{{0, 0, 0, 1, 1, 1}, DType::f32, 0, 120'000, 120'000, 240'000, 360'000},
                                                          {{0, 0, 1, 1, 2, 2}, DType::f32, 1, 160'000, 160'000, 320'000, 320'000},
                                                          {{0, 0, 0, 1, 1, 1}, DType::bf16, 1, 60'000, 120'000, 180'000, 180'000}};
  for (const Case& c : cases) {
    SCOPED_TRACE(::testing::Message() << name_of(c.nodes) << " " << dtype_name(c.dtype) << " node " << c.node);
    const auto group = make(c.nodes, {.max_collective_slice_bytes = 19'999});
    Data full(10'000 * world.num_ranks(), c.dtype), other(10'000 * world.num_ranks(), c.dtype), shard(10'000, c.dtype);
    full.fill_as(world.rank());
    shard.fill_as(world.rank());
    const auto expect = [&](std::int64_t expected, const std::function<void()>& collective) {
      const std::int64_t before = group->bytes_to_other_nodes();
      const std::int64_t crossed = bytes_that_cross(c.nodes, collective);
      EXPECT_EQ(of_all_on(c.nodes, c.node, crossed), expected);
      EXPECT_EQ(group->bytes_to_other_nodes() - before, crossed) << "the group counts them";
    };
    expect(c.all_gather, [&] { group->all_gather(*stream, "g", shard.view(), full.view()); });
    expect(c.reduce_scatter, [&] { group->reduce_scatter(*stream, "r", full.view(), shard.view()); });
    expect(c.all_reduce, [&] { group->all_reduce(*stream, "a", full.view(), ReduceOp::sum); });
    expect(c.all_to_all, [&] { group->all_to_all(*stream, "t", full.view(), other.view()); });
  }
}

TEST_F(NodeGroup, ShortSlicesAreOneMpiCall_OnSeveralRanks) {
  for (const Nodes& nodes : layouts_of(world.num_ranks())) {
    const auto group = make(nodes);
    Data full(8192 * world.num_ranks(), DType::f32), shard(8192, DType::f32);  // slices of 32 KiB
    const MpiCallCounts before = mpi_calls();
    group->all_gather(*stream, "g", shard.view(), full.view());
    group->reduce_scatter(*stream, "r", full.view(), shard.view());
    stream->synchronize();
    const MpiCallCounts calls = mpi_calls() - before;
    EXPECT_EQ(calls.of(MpiCall::allgather), 1);
    EXPECT_EQ(calls.of(MpiCall::alltoall), 1);
    EXPECT_EQ(calls.total(), 2);
  }
}

TEST_F(NodeGroup, GroupsOverTheSameNodesCommunicateAtOnce_OnSeveralRanks) {
  const Nodes nodes = layouts_of(world.num_ranks()).front();
  const auto a = make(nodes, {.max_collective_slice_bytes = 0});
  const auto b = a->duplicate("second");
  const auto other_stream = make_cpu_stream("second", StreamMode::threaded);
  constexpr int kRounds = 20;
  constexpr std::int64_t kNumel = 3001;
  std::vector<Data> sums, gathered, shards;
  for (int i = 0; i < kRounds; ++i) {
    sums.emplace_back(kNumel, DType::f32).fill_as(world.rank());
    shards.emplace_back(kNumel, DType::f32).fill_as(world.rank());
    gathered.emplace_back(kNumel * world.num_ranks(), DType::f32);
  }
  for (std::size_t i = 0; i < kRounds; ++i) {
    a->all_reduce(*stream, "a", sums[i].view(), ReduceOp::sum);
    b->all_gather(*other_stream, "b", shards[i].view(), gathered[i].view());
  }
  stream->synchronize();
  other_stream->synchronize();
  for (std::size_t i = 0; i < kRounds; ++i) {
    expect_sums(sums[i], nodes, 0, DType::f32, adds_by_node(nodes, kNumel * 4 / world.num_ranks(), DType::f32, 0));
    for (std::int64_t k = 0; k < gathered[i].numel(); ++k) {
      ASSERT_EQ(gathered[i].at(k), value_of(static_cast<int>(k / kNumel), k % kNumel));
    }
  }
}

// Groups that are made of others: of one node, and across nodes with one rank on each.
TEST_F(NodeGroup, AMeshKeepsItsPlaces_OnSeveralRanks) {
  const int per_node = world.num_ranks() / 2;
  if (world.num_ranks() % 2 != 0) return;  // run on 2, 4 and 6
  std::vector<RankPlace> places;           // dealt out in turn to two nodes
  for (int r = 0; r < world.num_ranks(); ++r) places.push_back({r, r % 2 == 0 ? "even" : "odd", r % 2, r / 2});
  const Mesh mesh = make_mpi_mesh(world, {ShardSize::Kind::node, 0}, *pool, {}, places);
  EXPECT_EQ(mesh.shard().num_ranks(), per_node);
  const auto crossed = [&](ProcessGroup& group) {
    Data full(20'000 * group.num_ranks(), DType::f32), shard(20'000, DType::f32);
    group.all_gather(*stream, "g", shard.view(), full.view());
    stream->synchronize();
    return group.bytes_to_other_nodes();
  };
  EXPECT_EQ(crossed(mesh.shard()), 0);
  EXPECT_EQ(crossed(mesh.replicate()), 80'000);
  EXPECT_EQ(crossed(mesh.world()), 80'000) << "one counterpart on the other node";
  EXPECT_EQ(crossed(*mesh.world().duplicate("copy")), 80'000);
}

TEST_F(NodeGroup, AFailedSendIsAnErrorAndLeavesNoReceivePosted_OnSeveralRanks) {
  const Nodes nodes = layouts_of(world.num_ranks()).front();
  const auto group = make(nodes, {.max_collective_slice_bytes = 0});
  Data full(400 * world.num_ranks(), DType::f32), shard(400, DType::f32), untouched(400 * world.num_ranks(), DType::f32);
  const auto expect_failure = [&](const std::function<void()>& collective, const char* name) {
    testing::fail_next(MpiCall::isend);  // on every rank, so that nobody hangs
    collective();
    try {
      stream->synchronize();
      ADD_FAILURE() << "expected an MpiError";
    } catch (const MpiError& e) {
      EXPECT_THAT(e.what(), ::testing::AllOf(HasSubstr(name), HasSubstr("MPI_Isend failed")));
    }
    stream->drain_and_clear_error();
    world.barrier();
  };
  expect_failure([&] { group->all_gather(*stream, "h.0", shard.view(), full.view()); }, "all_gather 'h.0'");
  testing::check_all_gather(*group, *stream, 400, DType::f32, false);
  for (std::int64_t i = 0; i < full.numel(); ++i) {
    if (i / 400 == world.rank()) continue;
    ASSERT_TRUE(std::isnan(full.at(i))) << "nobody else writes into a buffer that its owner has back";
  }
  if (world.num_ranks() % 2 != 0) return;  // on uneven nodes some send nothing before they wait for others
  full.fill_as(world.rank());
  expect_failure([&] { group->reduce_scatter(*stream, "h.1", full.view(), shard.view()); }, "reduce_scatter 'h.1'");
  group->reduce_scatter(*stream, "h.1", full.view(), shard.view());
  stream->synchronize();
  expect_sums(shard, nodes, world.rank() * 400, DType::f32, adds_by_node(nodes, 1600, DType::f32, 0));
}

}  // namespace
}  // namespace mica
