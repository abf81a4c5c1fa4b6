// SPDX-License-Identifier: Apache-2.0
// Batches are read ahead of their steps, and nobody notices ([Note: batches read ahead]).
#include "mica/train/step_runner.hpp"

#include <filesystem>
#include <fstream>
#include <vector>

#include <gtest/gtest.h>

#include "support/mpi_test.hpp"

namespace mica::train {
namespace {

constexpr std::int64_t kSeqLen = 16;
constexpr std::uint16_t kPastVocab = 300;

/// Sequences of which each repeats one token: in order, step s of a rank alone reads sequence s - 1.
class TokenFile {
 public:
  TokenFile() {
    std::ofstream(path, std::ios::binary).close();
    for (std::uint16_t sequence = 0; sequence < 8; ++sequence) write(sequence, static_cast<std::uint16_t>(sequence + 1));
  }
  ~TokenFile() { std::filesystem::remove(path); }
  TokenFile(const TokenFile&) = delete;
  TokenFile& operator=(const TokenFile&) = delete;

  void write(std::int64_t sequence, std::uint16_t token) const {
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    const std::vector<std::uint16_t> ids(kSeqLen, token);
    file.seekp(sequence * kSeqLen * 2).write(reinterpret_cast<const char*>(ids.data()), kSeqLen * 2);
  }
  std::string path = (std::filesystem::temp_directory_path() / "mica-step-runner.bin").string();
};

TEST(StepRunner, ReadsTheNextBatchBehindAStepAndTellsOfABadOneAtItsOwn) {
  const TokenFile tokens;
  Config config;
  config.model.type = "mlp";
  config.model.layers = 1;
  config.model.width = 8;
  config.model.vocab_size = 256;
  config.data.train = {tokens.path};
  config.data.order = "sequential";
  config.train.micro_batch = 1;
  config.train.seq_len = kSeqLen;
  const mpi::Communicator world = mpi::Communicator::world();
  Device device = Device::make(config, testing::session(), world, Logger());
  const Datasets datasets = Datasets::open(config);
  const data::BatchPlan plan = data::make_batch_plan(1, 1, 0);
  ShardedModel model = ShardedModel::make(config, device);
  model.root->initialize(1);
  StepRunner runner(config, model, datasets.train, plan, 0);

  EXPECT_NO_THROW(static_cast<void>(runner.run(1, 1e-3)));
  tokens.write(1, kPastVocab);  // the second step's, which is read already
  tokens.write(2, kPastVocab);
  EXPECT_NO_THROW(static_cast<void>(runner.run(2, 1e-3))) << "the third step's batch is not the second's business";
  EXPECT_THROW(static_cast<void>(runner.run(3, 1e-3)), ConfigError);
  tokens.write(2, 3);
  EXPECT_NO_THROW(static_cast<void>(runner.run(3, 1e-3)));
  EXPECT_THROW(static_cast<void>(runner.run(2, 1e-3)), ConfigError) << "the fourth step's batch is no other step's";
  model.context.compute.synchronize();
}

}  // namespace
}  // namespace mica::train
