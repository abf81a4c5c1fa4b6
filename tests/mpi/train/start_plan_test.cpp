// SPDX-License-Identifier: Apache-2.0
// What a run prints of its memory and communication before it starts, beside the run.
#include "mica/train/start_plan.hpp"

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "planned_training.hpp"
#include "tokens.hpp"

namespace mica::train {
namespace {

// What fsdp.ignore (docs/parity.md B3) keeps whole on every rank is in the plan: 256 x 16 parameters here, in param_dtype.
TEST(StartPlan, B3_CountsIgnoredParameters) {
  const mpi::Communicator world = mpi::Communicator::world();
  const Tokens tokens(world.rank());
  for (const std::string dtype : {"fp32", "bf16"}) {
    Config config;
    config.model.type = "mlp";
    config.model.layers = 2;
    config.model.width = 16;
    config.model.vocab_size = 256;
    config.fsdp.ignore = {"embed.weight"};
    config.fsdp.param_dtype = dtype;
    config.data.train = {tokens.path};
    config.train.micro_batch = 2;
    config.train.seq_len = 32;
    config.train.log_interval = 2;
    PlannedTraining training(world, config);
    const MemoryStats& pool = training.device.pool->stats();
    std::int64_t bytes = 256 * 16 * (dtype == "fp32" ? 4 : 2);
    for (const fsdp::Unit* unit : training.model.root->units()) {
      if (unit->storage() && unit->storage()->shares_casts()) bytes += unit->storage()->shared_bytes();
    }
    EXPECT_EQ(pool.current_of(MemoryRole::unsharded_param), bytes);
    EXPECT_EQ(training.plan.step_memory.start.by_role[static_cast<std::size_t>(MemoryRole::unsharded_param)], bytes);
    training.run(1, 2);
    EXPECT_EQ(pool.peak, training.plan.memory.peak) << dtype;
    EXPECT_EQ(pool.peak_by_role, training.plan.memory.peak_by_role) << dtype;
    world.barrier();
  }
}

// Whatever a run does with its memory, the plan has its pools' peaks to the byte.
TEST(StartPlan, F4_HasThePeaksOfEveryKindOfRun) {
  const mpi::Communicator world = mpi::Communicator::world();
  const Tokens tokens(world.rank());
  const std::string text =
      "[model]\nlayers = 3\nheads = 2\nwidth = 12\nvocab_size = 256\ncontext = 32\ndropout = 0.1\n[data]\ntrain = " + tokens.path +
      "\n[train]\nmicro_batch = 2\nseq_len = 16\nlog_interval = 3\n";
  for (const std::vector<std::string>& flags : std::vector<std::vector<std::string>>{
           {},
           {"--mesh.backend=mpi"},
           {"--mesh.backend=mpi", "--mesh.streams=threaded"},
           {"--fsdp.param_dtype=fp16"},
           {"--fsdp.param_dtype=bf16", "--fsdp.reduce_dtype=bf16"},
           {"--optim.in_backward=true", "--optim.grad_clip=0", "--fsdp.use_orig_params=true"},
           {"--train.deterministic=true"},
           {"--fsdp.sharding=per_parameter"},
           {"--fsdp.strategy=hybrid_shard", "--mesh.shard_size=1"},
           {"--fsdp.strategy=no_shard"},
           {"--fsdp.cpu_offload=parameters"},
           {"--fsdp.cpu_offload=parameters", "--fsdp.param_dtype=bf16"},
           {"--fsdp.cpu_offload=gradients"},
           {"--fsdp.use_orig_params=true", "--fsdp.activation_checkpointing=block"},
           {"--fsdp.activation_checkpointing=1"},
           {"--optim.state_dtype=int8"},
           {"--train.global_batch=" + std::to_string(2 * 5 * world.num_ranks())},
           {"--train.global_batch=" + std::to_string(2 * 300 * world.num_ranks())},
       }) {
    const Config config = parse_config({.text = text}, flags);
    PlannedTraining training(world, config);
    training.run(1, 3);
    const MemoryStats& pool = training.device.pool->stats();
    const std::string what = fmt::format("{}", fmt::join(flags, " "));
    EXPECT_EQ(pool.peak, training.plan.memory.peak) << what;
    EXPECT_EQ(pool.peak_by_role, training.plan.memory.peak_by_role) << what;
    EXPECT_EQ(training.device.device_mesh->offload().pool->stats().peak, training.plan.offload_peak) << what;
    world.barrier();
  }
}

// Neither many ranks nor many micro-batches between progress lines make rank memory grow, and sums keep their order.
TEST(StartPlan, ManyLossesAreReadInParts) {
  const mpi::Communicator world = mpi::Communicator::world();
  const Tokens tokens(world.rank());
  Config config;
  config.model.type = "mlp";
  config.model.layers = 1;
  config.model.width = 8;
  config.model.vocab_size = 256;
  config.data.train = {tokens.path};
  config.train.seq_len = 16;
  PlannedTraining training(world, config);
  const nn::Context& context = training.model.context;
  constexpr std::int64_t kRounds = 10'007, kSteps = 7;
  const auto loss = [](int rank, std::int64_t micro_batch) { return 1 + 0.37F * static_cast<float>((micro_batch * 31 + rank * 7) % 1000); };
  std::vector<StepFigures> steps(kSteps);
  std::vector<const StepFigures*> all;
  for (std::int64_t step = 0; step < kSteps; ++step) {
    std::vector<float> mine;
    for (std::int64_t round = 0; round < kRounds; ++round) mine.push_back(loss(world.rank(), step * kRounds + round));
    StepFigures& figures = steps[static_cast<std::size_t>(step)];
    figures.losses = context.make({kRounds}, DType::f32, MemoryRole::workspace);
    context.kernels.copy(context.compute, TensorView{mine.data(), {kRounds}, DType::f32}, figures.losses);
    context.compute.synchronize();
    all.push_back(&figures);
  }
  const MemoryStats& pool = training.device.pool->stats();
  const std::int64_t before = pool.current;
  const std::vector<double> means = mean_losses(training.model, all);
  EXPECT_LE(pool.peak, before + (256 << 10));
  ASSERT_EQ(means.size(), all.size());
  for (std::int64_t step = 0; step < kSteps; ++step) {
    double sum = 0;
    for (std::int64_t round = 0; round < kRounds; ++round) {
      for (int rank = 0; rank < world.num_ranks(); ++rank) sum += static_cast<double>(loss(rank, step * kRounds + round));
    }
    EXPECT_EQ(means[static_cast<std::size_t>(step)], sum / static_cast<double>(kRounds * world.num_ranks())) << step;
  }
  world.barrier();
}

// A plan runs four micro-batches of many: what it says of the others is what they send and hold.
TEST(StartPlan, ManyMicroBatchesAreLikeTheMiddleOnes) {
  const mpi::Communicator world = mpi::Communicator::world();
  const Tokens tokens(world.rank());
  for (const std::string strategy : {"full_shard", "shard_grad_op"}) {
    for (const std::string sync : {"sync", "no_sync"}) {
      Config config;
      config.model = {.layers = 2, .heads = 2, .width = 12, .vocab_size = 256, .context = 32};
      config.data.train = {tokens.path};
      config.train.micro_batch = 1;
      config.train.seq_len = 16;
      config.train.gradient_sync = sync;
      config.mesh.backend = "mpi";
      config.fsdp.strategy = strategy;
      config.train.global_batch = 7 * world.num_ranks();
      config.train.log_interval = 1;
      PlannedTraining training(world, config);
      training.run(1, 1);
      const fsdp::DeviceMesh& device_mesh = *training.device.device_mesh;
      const std::vector<ProcessGroup*> groups{&device_mesh.unshard_group(), &device_mesh.reduce_group(), &device_mesh.shard_norm_group()};
      for (ProcessGroup* group : groups) group->reset_counts();
      training.run(2, 2);
      for (const ProcessGroup* group : groups) {
        for (const Collective kind : {Collective::all_gather, Collective::reduce_scatter, Collective::all_reduce}) {
          std::int64_t calls = 0, bytes = 0;
          for (const plan::CollectiveVolume& volume : training.plan.volume) {
            if (volume.group != group->name() || volume.kind != kind) continue;
            calls += volume.calls;
            bytes += volume.bytes;
          }
          EXPECT_EQ(calls, group->counts().of(kind)) << strategy << " " << sync << " " << group->name() << " " << collective_name(kind);
          EXPECT_EQ(bytes, group->counts().bytes_of(kind))
              << strategy << " " << sync << " " << group->name() << " " << collective_name(kind);
        }
      }
      EXPECT_EQ(training.device.pool->stats().peak, training.plan.memory.peak) << strategy << " " << sync;
      world.barrier();
    }
  }
}

}  // namespace
}  // namespace mica::train
