// SPDX-License-Identifier: Apache-2.0
// docs/design.md, Invariants 2, from outside: what the operating system says a training of more than 500 MB takes, against the
// plan and the pool's count.
#include <fstream>
#include <string>

#include <gtest/gtest.h>

#include "planned_training.hpp"
#include "tokens.hpp"

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

/// Resident masters of this rank's neighbours: a page that n ranks share counts for one of them.
std::int64_t bytes_of_neighbours() {
  std::ifstream mappings("/proc/self/smaps");
  std::int64_t all = 0, own = 0;
  bool is_shared = false;
  for (std::string line; std::getline(mappings, line);) {
    const auto value_of = [&line](const std::string& field) {
      return line.starts_with(field + ":") ? std::stoll(line.substr(field.size() + 1)) * 1024 : 0;
    };
    const bool is_mapping = line.find(' ') < line.find(':');  // "7f00-7f10 rw-s 0000 00:17 5 /dev/shm/..."; else one of its fields
    if (is_mapping) is_shared = line.find(" /dev/shm/") != std::string::npos;
    if (is_shared) all += value_of("Rss"), own += value_of("Pss");
  }
  return all - own;
}

TEST(Memory, F4_OperatingSystemAgreesWithPlanAndPool) {
  const mpi::Communicator world = mpi::Communicator::world();
  const Tokens tokens(world.rank());
  Config config;
  // 8 blocks of 8.4 M parameters: 67 M, with gradient and two moments 1.07 GB over the ranks.
  config.model.type = "mlp";
  config.model.layers = 8;
  config.model.width = 1024;
  config.model.vocab_size = 256;
  config.data.train = {tokens.path};
  config.train.micro_batch = 2;
  config.train.seq_len = 32;
  config.train.log_interval = 3;

  const std::int64_t before = status_bytes("VmRSS");
  PlannedTraining training(world, config);
  training.run(1, 3);
  const StartPlan& plan = training.plan;
  const MemoryStats& pool = training.device.pool->stats();

  world.barrier();  // all ranks have their neighbours' pages
  const std::int64_t taken = status_bytes("VmHWM") - before - bytes_of_neighbours();
  ASSERT_GT(plan.memory.peak, 500'000'000);
  EXPECT_EQ(pool.peak, plan.memory.peak);
  // The pool's pieces leave gaps. What is beside the pool is oneDNN's: its code, and on CPUs without AVX-512 the copies of operands.
  const std::int64_t reserved = pool.reserved;
  EXPECT_NEAR(static_cast<double>(reserved), static_cast<double>(plan.memory.peak), 0.03 * static_cast<double>(plan.memory.peak));
  EXPECT_NEAR(static_cast<double>(taken), static_cast<double>(reserved), 40e6);
  world.barrier();
}

}  // namespace
}  // namespace mica::train
