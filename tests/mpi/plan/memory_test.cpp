// SPDX-License-Identifier: Apache-2.0
// The dry device beside real MPI, whose collectives take staging memory.
#include <gtest/gtest.h>

#include "mica/comm/mpi_group.hpp"
#include "mica/nn/models/gpt2.hpp"

#include "support/mpi_test.hpp"
#include "unit/plan/planned_run.hpp"

namespace mica::testing {
namespace {

using test::Measured;
using test::PlannedRun;

TEST(DryDevice, CountsTheStagingOfMpi) {
  const mpi::Communicator comm = mpi::Communicator::world();
  const int world_size = comm.num_ranks();
  // Slices both below and above what one staging block holds.
  for (const std::int64_t staging_bytes : {1 << 10, 16 << 20}) {
    const MpiGroupOptions mpi_options{.staging_bytes = staging_bytes};
    for (const int shard_size : {1, 2, world_size}) {
      if (world_size % shard_size != 0) continue;
      for (const StreamMode mode : {StreamMode::inlined, comm_stream_mode(session(), StreamMode::threaded)}) {
        for (const auto& [reduce_dtype, shares_memory] : {std::pair{DType::f32, false}, {DType::bf16, false}, {DType::f32, true}}) {
          PlannedRun run;
          run.make_model = [] {
            return std::make_unique<nn::Gpt2>(nn::Gpt2Config{.layers = 3, .heads = 2, .width = 22, .context = 8, .vocab_size = 31});
          };
          run.wrap = fsdp::wrap_types({"gpt2_block"});
          run.inputs = {{Shape{1, 3}, DType::i32}, {Shape{1, 3}, DType::i32}};
          run.options.strategy = fsdp::Strategy::hybrid_shard;
          run.options.mixed_precision.reduce_dtype = reduce_dtype;
          run.shard_size = shard_size;
          run.mode = mode;
          run.staging_bytes = [&](Collective kind, std::int64_t numel, DType dtype, int num_ranks) {
            return mpi_staging_bytes(kind, numel, dtype, num_ranks, mpi_options);
          };
          MpiGroupOptions group_options = mpi_options;
          group_options.shares_memory = shares_memory;
          SCOPED_TRACE(fmt::format("shard_size {}, staging {}{}", shard_size, staging_bytes, shares_memory ? ", shared memory" : ""));
          run.shares_memory = shares_memory;
          plan::StepRecorder recorder(test::dry_options(world_size, comm.rank(), run));
          const Measured dry = measure_run({}, run, &recorder);
          const Measured real =
              measure_run([&](Pool& pool) { return make_mpi_group(comm.duplicate(), pool, "world", group_options); }, run);
          expect_equal(dry, real, "over MPI");
          EXPECT_EQ(real.last_step_shard.of(Collective::all_gather) > 0, shard_size > 1 && !shares_memory);
          EXPECT_EQ(real.peak_by_role[static_cast<std::size_t>(MemoryRole::communication)] > 0, world_size > 1);
        }
      }
    }
  }
}

}  // namespace
}  // namespace mica::testing
