// SPDX-License-Identifier: Apache-2.0
// The parity matrix on ranks that are threads; tests/mpi/fsdp has it under mpirun.
#include "support/parity.hpp"

#include <gtest/gtest.h>

#include "testing/local_group.hpp"

namespace mica::testing {
namespace {

/// @returns by rank
std::vector<ParityRun> run_case(const ParityCase& c, int world_size) {
  std::vector<ParityRun> runs(static_cast<std::size_t>(world_size));
  std::vector<StepCounts> counts(static_cast<std::size_t>(world_size));
  run_local_ranks(world_size,
                  [&](std::unique_ptr<ProcessGroup> world) {
                    const auto rank = static_cast<std::size_t>(world->rank());
                    runs[rank] = run_sharded(std::move(world), c, {.counts = &counts[rank]});
                  },
                  {.shares_memory = c.shares_memory});
  for (const StepCounts& count : counts) expect_counts(count, c, world_size);
  return runs;
}

void run_cases(int world_size, std::size_t num_cases) {
  std::vector<ParityCase> cases = parity_matrix(world_size);
  ASSERT_GT(cases.size(), num_cases);
  cases.resize(num_cases);
  int num_shared = 0;
  for (ParityCase& c : cases) {
    const ParityRun plain = run_plain(world_size, c.accumulation, c.param_dtype);
    const std::vector<ParityRun> runs = run_case(c, world_size);
    for (const ParityRun& run : runs) expect_parity(plain, run, c);
    if (c.can_share(world_size)) {
      ++num_shared;
      c.shares_memory = true;
      EXPECT_EQ(run_case(c, world_size), runs) << c.describe() << ": other bits than with all-gathers";
    }
    if (::testing::Test::HasFatalFailure()) return;
  }
  EXPECT_EQ(num_shared > 0, world_size > 1);
}

TEST(Parity, OneRank) { run_cases(1, 100); }
TEST(Parity, TwoRanks) { run_cases(2, 100); }
TEST(Parity, ThreeRanks) { run_cases(3, 75); }
TEST(Parity, SixRanks) { run_cases(6, 25); }

}  // namespace
}  // namespace mica::testing
