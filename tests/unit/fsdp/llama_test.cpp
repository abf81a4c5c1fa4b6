// SPDX-License-Identifier: Apache-2.0
// docs/design.md, Invariants 1 and 3, on a Llama: ranks that are threads against one plain rank. Separate projections and a head
// of its own cut units otherwise than GPT-2's packed ones.
#include <gtest/gtest.h>

#include "support/parity.hpp"
#include "testing/local_group.hpp"

namespace mica::testing {
namespace {

class LlamaParity : public ::testing::TestWithParam<int> {};

TEST_P(LlamaParity, FollowsOnePlainRank) {
  const int world_size = GetParam();
  const ParityRun plain = run_plain(world_size, 2, DType::f32, ParityCase::Model::llama);
  const ParityRun plain_bf16 = run_plain(world_size, 2, DType::bf16, ParityCase::Model::llama);
  int num_cases = 0;
  for (const auto strategy : {fsdp::Strategy::full_shard, fsdp::Strategy::shard_grad_op, fsdp::Strategy::hybrid_shard}) {
    for (const auto sharding : {fsdp::Sharding::flat, fsdp::Sharding::per_parameter}) {
      for (const auto wrap : {ParityCase::Wrap::block, ParityCase::Wrap::none}) {
        for (const bool checkpointed : {false, true}) {
          ParityCase c;
          c.model = ParityCase::Model::llama;
          c.strategy = strategy;
          c.shard_size = strategy == fsdp::Strategy::hybrid_shard ? (world_size % 2 == 0 ? 2 : 1) : 0;
          c.sharding = sharding;
          c.wrap = wrap;
          c.checkpointed = checkpointed;
          c.accumulation = 2;
          c.mode = num_cases % 2 == 0 ? StreamMode::threaded : StreamMode::inlined;
          if (num_cases % 3 == 2) c.param_dtype = DType::bf16;
          ++num_cases;
          std::vector<ParityRun> runs(static_cast<std::size_t>(world_size));
          std::vector<StepCounts> counts(static_cast<std::size_t>(world_size));
          run_local_ranks(world_size, [&](auto world) {
            const auto rank = static_cast<std::size_t>(world->rank());
            runs[rank] = run_sharded(std::move(world), c, {.counts = &counts[rank]});
          });
          for (const ParityRun& run : runs) expect_parity(c.param_dtype == DType::f32 ? plain : plain_bf16, run, c);
          for (const StepCounts& count : counts) expect_counts(count, c, world_size);
          if (HasFailure()) return;
        }
      }
    }
  }
  EXPECT_EQ(num_cases, 24);
}

INSTANTIATE_TEST_SUITE_P(Ranks, LlamaParity, ::testing::Values(1, 2, 3, 4));

}  // namespace
}  // namespace mica::testing
