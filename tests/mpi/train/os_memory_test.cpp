// DESIGN invariant 2 from outside: what the operating system says a training of more than 500 MB takes, against the
// planner's formula and the pool's count.
#include <filesystem>
#include <fstream>
#include <vector>

#include <gtest/gtest.h>

#include "mica/train/start_plan.hpp"
#include "mica/train/step_runner.hpp"
#include "support/mpi_test.hpp"

namespace mica::train {
namespace {

/// A line of /proc/self/status, in bytes.
std::int64_t status_bytes(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(field + ":")) return std::stoll(line.substr(field.size() + 1)) * 1024;
  }
  return -1;
}

TEST(Memory, OperatingSystemAgreesWithPlanAndPool) {
  const mpi::Communicator world = mpi::Communicator::world();
  const std::filesystem::path folder = std::filesystem::temp_directory_path() / "mica-os-memory";
  const std::string tokens = (folder / ("tokens" + std::to_string(world.rank()) + ".bin")).string();
  std::filesystem::create_directories(folder);
  {
    std::vector<std::uint16_t> ids(4000);
    for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::uint16_t>(i * 7 % 251);
    std::ofstream(tokens, std::ios::binary).write(reinterpret_cast<const char*>(ids.data()), static_cast<std::streamsize>(ids.size() * 2));
  }
  Config config;
  // 8 blocks of 8.4 M parameters: 67 M, with gradient and two moments 1.07 GB over the ranks.
  config.model.type = "mlp";
  config.model.layers = 8;
  config.model.width = 1024;
  config.model.vocab_size = 256;
  config.data.train = {tokens};
  config.train.micro_batch = 2;
  config.train.seq_len = 32;

  const std::int64_t before = status_bytes("VmRSS");
  Device device = Device::make(config, testing::session(), world, Logger());
  const Datasets datasets = Datasets::open(config);
  const data::BatchPlan batch = data::make_batch_plan(2, world.num_ranks(), 0);
  ShardedModel model = ShardedModel::make(config, device);
  const StartPlan plan = make_start_plan(config, device, model, batch);
  model.root->initialize(1);
  StepRunner runner(config, model, datasets.train, batch, world.rank());
  for (std::int64_t step = 1; step <= 3; ++step) (void)runner.run(step, 1e-3);
  model.context.compute.synchronize();

  const std::int64_t taken = status_bytes("VmHWM") - before;
  ASSERT_GT(plan.memory.peak, 500'000'000);
  EXPECT_NEAR(static_cast<double>(device.pool->stats().peak), static_cast<double>(plan.memory.peak), 0.001 * static_cast<double>(plan.memory.peak));
  EXPECT_NEAR(static_cast<double>(taken), static_cast<double>(plan.memory.peak), 0.05 * static_cast<double>(plan.memory.peak))
      << "the pool reserved " << device.pool->stats().reserved << " bytes";
  world.barrier();
  std::filesystem::remove(tokens);
}

}  // namespace
}  // namespace mica::train
