// SPDX-License-Identifier: Apache-2.0
// A part of the parity matrix on ranks that are threads; tests/mpi/fsdp walks all of it under mpirun.
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

void run_cases(int world_size, std::size_t stride) {
  const std::vector<ParityCase> matrix = parity_matrix(world_size);
  std::size_t num_run = 0;
  int num_shared = 0;
  for (std::size_t i = 0; i < matrix.size(); i += stride) {
    ParityCase c = matrix[i];
    const ParityRun plain = run_plain(world_size, c.accumulation, c.param_dtype);
    const std::vector<ParityRun> runs = run_case(c, world_size);
    for (const ParityRun& run : runs) expect_parity(plain, run, c);
    ++num_run;
    if (c.can_share_masters(world_size)) {
      ++num_shared;
      c.shares_memory = true;
      EXPECT_EQ(run_case(c, world_size), runs) << c.describe() << ": other bits than with all-gathers";
    }
    if (::testing::Test::HasFatalFailure()) return;
  }
  EXPECT_EQ(num_run, (matrix.size() + stride - 1) / stride);
  EXPECT_EQ(num_shared > 0, world_size > 1);
}

TEST(Parity, OneRank) { run_cases(1, 13); }
TEST(Parity, TwoRanks) { run_cases(2, 17); }
TEST(Parity, ThreeRanks) { run_cases(3, 23); }
TEST(Parity, SixRanks) { run_cases(6, 97); }

}  // namespace
}  // namespace mica::testing
