// SPDX-License-Identifier: Apache-2.0
// F3: bitwise the same run on any number of ranks, as users run it: figures, parameters and optimizer state.
#include <cmath>

#include <gtest/gtest.h>

#include "fault/support/training.hpp"
#include "support/temporary_folder.hpp"

namespace mica::test {
namespace {

class DeterministicRun : public ::testing::Test {
 protected:
  static constexpr int kSteps = 6;

  void SetUp() override {
    write_tokens(folder_ / "tokens.bin", 20'000);
    write_text(folder_ / "run.cfg",
               "[model]\ntype = gpt2\nlayers = 2\nheads = 2\nwidth = 32\nvocab_size = 256\ncontext = 32\ndropout = 0.1\n"
               "[data]\ntrain = " +
                   (folder_ / "tokens.bin") +
                   "\n"
                   "[train]\nsteps = " +
                   std::to_string(kSteps) +
                   "\nmicro_batch = 1\nglobal_batch = 12\nseq_len = 32\nlog_interval = 2\n"
                   "drift_interval = 2\n[optim]\nlr = 0.01\ngrad_clip = 0.5\n[checkpoint]\ninterval = 6\n");
  }
  std::string run_folder(const std::string& name) { return folder_ / name; }
  std::string last_checkpoint(const std::string& name) { return run_folder(name) + "/checkpoints/step-00000006"; }

  void train(const std::string& name, int num_ranks, std::vector<std::string> flags, bool deterministic = true) {
    flags.push_back("--run.dir=" + run_folder(name));
    if (deterministic) flags.push_back("--train.deterministic=true");
    const Finished run = test::run(training(num_ranks, folder_ / "run.cfg", flags));
    ASSERT_EQ(run.status, 0) << run.output;
    ASSERT_EQ(step_lines(run_folder(name)).size(), static_cast<std::size_t>(kSteps));
  }
  Finished diff(const std::string& a, const std::string& b) {
    return test::run({program("mica-inspect"), "diff", last_checkpoint(a), last_checkpoint(b)});
  }
  void expect_same(const std::string& name) {
    EXPECT_EQ(step_lines(run_folder(name)), step_lines(run_folder("one"))) << name;
    const Finished found = diff("one", name);
    EXPECT_EQ(found.status, 0) << name << ": " << found.output;
  }

  TemporaryFolder folder_;
};

/// F3
TEST_F(DeterministicRun, F3OneTwoThreeAndTwoByTwoRanks) {
  train("one", 1, {});
  train("two", 2, {});
  expect_same("two");
  train("grid", 4, {"--fsdp.strategy=hybrid_shard", "--mesh.shard_size=2", "--mesh.streams=threaded"});
  expect_same("grid");
  train("three", 3, {"--fsdp.strategy=no_shard"});
  expect_same("three");
}

/// F3
TEST_F(DeterministicRun, F3OrdinaryRunsDiffer) {
  train("one", 1, {}, false);
  train("three", 3, {}, false);
  EXPECT_EQ(diff("one", "three").status, 1);
}

// Equal logits, as a model of zeros has, would give the logarithm of the vocabulary exactly.
TEST_F(DeterministicRun, ANewRunBeginsWithTheValuesOfItsSeed) {
  std::vector<double> first_losses;
  for (const std::string seed : {"1", "2"}) {
    train("seed-" + seed, 1, {"--run.seed=" + seed, "--data.order=sequential", "--model.dropout=0"}, false);
    first_losses.push_back(step_lines(run_folder("seed-" + seed)).at(0).loss);
    EXPECT_GT(std::abs(first_losses.back() - std::log(256)), 1e-3);
  }
  EXPECT_NE(first_losses[0], first_losses[1]);
}

TEST_F(DeterministicRun, ContradictionsAreRefused) {
  for (const auto& [flag, word] :
       {std::pair<std::string, std::string>{"--train.gradient_sync=no_sync", "train.gradient_sync = reduce_each"},
        {"--train.reproducible=false", "train.reproducible = true"},
        {"--fsdp.gradient_compression=bf16", "fsdp.gradient_compression = bf16"}}) {
    const Finished run = test::run(training(1, folder_ / "run.cfg", {"--train.deterministic=true", flag, "--check"}));
    EXPECT_EQ(run.status, 2);
    EXPECT_NE(run.output.find(word), std::string::npos) << run.output;
  }
}

}  // namespace
}  // namespace mica::test
