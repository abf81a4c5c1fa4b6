// SPDX-License-Identifier: Apache-2.0
// docs/design.md, Invariants 1 and 3, over real MPI: the parity matrix for the world size it is started on, and the exact number of
// collectives, counted in the process groups and from outside through MPI's profiling interface.
#include "support/parity.hpp"

#include <algorithm>
#include <map>

#include <gtest/gtest.h>

#include "mica/comm/mpi_group.hpp"

#include "support/environment_number.hpp"
#include "support/mpi_test.hpp"
#include "support/pmpi_counter.hpp"

namespace mica::testing {
namespace {

/// MPI calls of a run's collectives, from docs/parity.md D1 and [Note: MPI calls of collectives].
struct ExpectedCalls {
  std::int64_t allgather, alltoall, allgatherv;
};

ExpectedCalls expected_calls(const ParityCase& c, const StepCounts& counts, int world_size) {
  const int shard_size = c.strategy == fsdp::Strategy::no_shard ? 1 : (c.shard_size == 0 ? world_size : c.shard_size);
  const std::int64_t n = counts.num_units;
  const std::int64_t reductions = c.no_sync ? 1 : c.accumulation;
  const bool keeps = !fsdp::reshards_after_forward(c.strategy);
  const bool keeps_over_rounds = keeps && (c.no_sync || c.strategy == fsdp::Strategy::shard_optim);
  const std::int64_t gathering_rounds = keeps_over_rounds ? 1 : c.accumulation;
  const bool reduces_first = !c.no_sync || c.accumulation == 1;
  // The first micro-batch of the run: each unit's forward and backward, and its end. The first backward that reduces: each
  // unit's reduction, and its end. Three units of each of the two checkpointed blocks also run their forward again in backward.
  const std::int64_t recomputed = c.checkpointed && c.wrap == ParityCase::Wrap::size ? 6 : 0;
  const std::int64_t agreements = world_size == 1 ? 0 : 3 * n + recomputed + (reduces_first ? 1 : 2);
  const std::int64_t in_forward = c.num_gathered(n, world_size);
  const std::int64_t gathers = gathering_rounds * (in_forward + (keeps || in_forward == 0 ? 0 : n - 1));
  // The harness itself all-reduces the losses of each step, 28 gradients and 28 parameters.
  const std::int64_t of_harness = world_size == 1 ? 0 : kParitySteps + 2 * 28;
  return {.allgather = kParitySteps * gathers + agreements,
          .alltoall = shard_size == 1 ? 0 : kParitySteps * n * reductions,
          .allgatherv = (world_size > shard_size ? kParitySteps * n * reductions : 0) + of_harness};
}

/// Its counts are checked, from inside and from outside.
ParityRun run_counted(const ParityCase& c, const mpi::Communicator& comm) {
  auto pool = make_cpu_pool();
  auto world = make_mpi_group(comm.duplicate(), *pool, "world",
                              {.max_collective_slice_bytes = std::int64_t{1} << 30, .shares_memory = c.shares_memory});
  const MpiCallCounts before = mpi_calls();
  StepCounts counts;
  ParityRun run = run_sharded(std::move(world), c, {.counts = &counts});
  const MpiCallCounts calls = mpi_calls() - before;
  expect_counts(counts, c, comm.num_ranks());
  const ExpectedCalls expected = expected_calls(c, counts, comm.num_ranks());
  // The members of each new communicator tell each other who they are.
  EXPECT_EQ(calls.of(MpiCall::allgather), expected.allgather + calls.of(MpiCall::split)) << c.describe();
  EXPECT_EQ(calls.of(MpiCall::alltoall), expected.alltoall) << c.describe();
  EXPECT_EQ(calls.of(MpiCall::allgatherv), expected.allgatherv) << c.describe();
  return run;
}

/// MICA_PARITY_CASES: how many of the matrix; if it isn't set, 12 for each strategy and grid.
std::size_t num_cases_asked(std::size_t num_grids) {
  return static_cast<std::size_t>(test::environment_number("MICA_PARITY_CASES", static_cast<std::int64_t>(12 * num_grids)));
}

TEST(Parity, A1_EveryCaseFollowsOnePlainRank) {
  const mpi::Communicator comm = mpi::Communicator::world();
  const int world_size = comm.num_ranks();
  // Strategies x dtypes x wrappings x prefetches x checkpointing x accumulations x stream modes. Strategies: four, and
  // two hybrid ones for each divisor of the world size.
  const std::map<int, std::size_t> num_grids{{1, 6}, {2, 8}, {3, 8}, {4, 10}, {6, 12}};
  std::vector<ParityCase> cases = parity_matrix(world_size);
  ASSERT_EQ(cases.size(), num_grids.at(world_size) * 2 * 3 * 3 * 2 * 3 * 2);
  cases.resize(std::min(cases.size(), num_cases_asked(num_grids.at(world_size))));
  std::map<std::pair<int, DType>, ParityRun> plain_runs;
  int num_sharing = 0;
  for (ParityCase& c : cases) {
    auto [plain, is_new] = plain_runs.try_emplace({c.accumulation, c.param_dtype});
    if (is_new) plain->second = run_plain(world_size, c.accumulation, c.param_dtype);
    const ParityRun run = run_counted(c, comm);
    expect_parity(plain->second, run, c);
    if (c.can_share(world_size) && ++num_sharing % 4 == 1) {
      c.shares_memory = true;
      EXPECT_EQ(run_counted(c, comm), run) << c.describe() << ": other bits than with all-gathers";
    }
    if (::testing::Test::HasFailure()) FAIL() << "stopped after " << c.describe();
  }
  EXPECT_GT(num_sharing, world_size > 1 ? static_cast<int>(cases.size() / 12) : -1);
}

}  // namespace
}  // namespace mica::testing
