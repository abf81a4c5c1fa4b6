// SPDX-License-Identifier: Apache-2.0
// docs/design.md, A step is a transaction: abandoned at any collective and done again, it leaves the bits of a run
// that was never disturbed.
#include <gtest/gtest.h>

#include "support/parity.hpp"
#include "testing/local_group.hpp"

namespace mica::testing {
namespace {

/// @param failing_index  collective of step 2 that fails on every rank; -1: none.  @returns rank 0's run.
ParityRun run_with_failure(const ParityCase& c, std::int64_t failing_index, std::int64_t* num_collectives = nullptr) {
  ParityRun result;
  run_local_ranks(2,
                  [&](std::unique_ptr<ProcessGroup> world) {
                    const int rank = world->rank();
                    FailurePlan plan(failing_index);
                    const ParityRun run = run_sharded(std::make_unique<FailingGroup>(std::move(world), plan), c, {.failures = &plan});
                    if (rank != 0) return;
                    result = run;
                    if (num_collectives) *num_collectives = plan.num_seen();
                  },
                  {.shares_memory = c.shares_memory});
  return result;
}

void abandon_at_every_collective(const ParityCase& c, std::int64_t expected_collectives) {
  std::int64_t num_collectives = 0;
  const ParityRun undisturbed = run_with_failure(c, -1, &num_collectives);
  ASSERT_EQ(num_collectives, expected_collectives) << c.describe();
  for (std::int64_t k = 0; k < num_collectives; ++k) {
    const ParityRun run = run_with_failure(c, k);
    EXPECT_EQ(run.losses, undisturbed.losses) << c.describe() << ", abandoned at collective " << k;
    EXPECT_EQ(run.parameters, undisturbed.parameters) << c.describe() << ", abandoned at collective " << k;
  }
}

// Three units, two micro-batches a step: each 3 + 2 all-gathers and 3 reduce-scatters.
TEST(AbandonStep, FullShard) {
  for (const StreamMode mode : {StreamMode::inlined, StreamMode::threaded}) {
    abandon_at_every_collective({.strategy = fsdp::Strategy::full_shard, .accumulation = 2, .mode = mode}, 16);
  }
}

// Masters that are shared: the 6 reduce-scatters are left, and rounds of which a rank's streams had skipped a part.
TEST(AbandonStep, SharedMasters) {
  for (const StreamMode mode : {StreamMode::inlined, StreamMode::threaded}) {
    for (const fsdp::Strategy strategy : {fsdp::Strategy::full_shard, fsdp::Strategy::shard_grad_op}) {
      abandon_at_every_collective({.strategy = strategy, .accumulation = 2, .mode = mode, .shares_memory = true}, 6);
    }
  }
}

// Low-precision shards, parameters that stay for a no_sync step: 3 all-gathers, then 3 reduce-scatters.
TEST(AbandonStep, ShardGradOpNoSync) {
  for (const StreamMode mode : {StreamMode::inlined, StreamMode::threaded}) {
    abandon_at_every_collective({.strategy = fsdp::Strategy::shard_grad_op,
                                 .param_dtype = DType::bf16,
                                 .checkpointed = true,
                                 .accumulation = 2,
                                 .no_sync = true,
                                 .mode = mode},
                                6);
  }
}

// Replicas: 3 all-reduces.
TEST(AbandonStep, NoShard) { abandon_at_every_collective({.strategy = fsdp::Strategy::no_shard, .shard_size = 1}, 3); }

}  // namespace
}  // namespace mica::testing
