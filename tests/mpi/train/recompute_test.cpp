// SPDX-License-Identifier: Apache-2.0
// What a run keeps for backward (fsdp.recompute): the same training whatever it is, in the memory that was planned.
#include <filesystem>
#include <fstream>
#include <vector>

#include <gtest/gtest.h>

#include "mica/tensor/fetch.hpp"
#include "mica/train/start_plan.hpp"
#include "mica/train/step_runner.hpp"

#include "support/mpi_test.hpp"
#include "support/temporary_folder.hpp"

namespace mica::train {
namespace {

struct Trained {
  std::vector<float> losses;                // of each step, this rank's
  std::vector<std::vector<float>> masters;  // of each unit, this rank's shard
  std::int64_t activation_peak = 0;
};

Trained train(const mpi::Communicator& world, const Config& config) {
  Device device = Device::make(config, testing::session(), world, Logger());
  const Datasets datasets = Datasets::open(config);
  const data::BatchPlan batch = data::make_batch_plan(config.train.micro_batch, world.num_ranks(), 0);
  ShardedModel model = ShardedModel::make(config, device);
  const StartPlan plan = make_start_plan(config, device, model, batch);
  model.root->initialize(1);
  StepRunner runner(config, model, datasets.train, batch, world.rank());
  Trained trained;
  for (std::int64_t step = 1; step <= 3; ++step) {
    const StepFigures figures = runner.run(step, 1e-2);
    trained.losses.push_back(fetch_scalar(*device.kernels, model.context.compute, figures.losses));
  }
  for (const fsdp::Unit* unit : model.root->units()) {
    trained.masters.push_back(fetch<float>(*device.kernels, model.context.compute, unit->storage()->master()));
  }
  trained.activation_peak = device.pool->stats().peak_of(MemoryRole::activation);
  EXPECT_EQ(trained.activation_peak, plan.memory.peak_of(MemoryRole::activation));
  return trained;
}

TEST(Recompute, TrainsTheSameInThePlannedMemory) {
  const mpi::Communicator world = mpi::Communicator::world();
  const test::TemporaryFolder folder;
  Config config;
  config.model = {.layers = 3, .heads = 2, .width = 12, .vocab_size = 31, .context = 16, .dropout = 0.1};
  config.data.train = {folder / "tokens.bin"};
  config.train.micro_batch = 2;
  config.train.seq_len = 8;
  std::vector<std::uint16_t> ids(500);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::uint16_t>(i * i % 31);
  std::ofstream(config.data.train[0], std::ios::binary)
      .write(reinterpret_cast<const char*>(ids.data()), static_cast<std::streamsize>(ids.size() * 2));

  config.fsdp.recompute = "none";
  const Trained kept = train(world, config);
  for (const std::string checkpointing : {"none", "2", "block"}) {
    for (const std::string recompute : {"none", "cheap"}) {
      config.fsdp.activation_checkpointing = checkpointing;
      config.fsdp.recompute = recompute;
      const Trained trained = train(world, config);
      EXPECT_EQ(trained.losses, kept.losses) << checkpointing << " " << recompute;
      EXPECT_EQ(trained.masters, kept.masters) << checkpointing << " " << recompute;
      if (checkpointing != "none") continue;
      // Of 3 blocks two norms' outputs and a GELU's of four times the width, 2 x 8 x 12 floats each. The peak is in the
      // head's backward, or in the last block's, which holds 4 of them more but not the last norm's statistics.
      const std::int64_t a = 2 * 8 * 12 * 4, s = 2 * 8 * 2 * 4;
      EXPECT_EQ(kept.activation_peak - trained.activation_peak, recompute == "none" ? 0 : 3 * 6 * a - 4 * a + s);
    }
  }
}

}  // namespace
}  // namespace mica::train
