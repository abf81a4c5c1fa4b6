// SPDX-License-Identifier: Apache-2.0
// Every file in configs/ loads and runs for a step; GPT-2 small and XL with fewer and smaller layers.

#include <filesystem>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fault/support/training.hpp"
#include "support/paths.hpp"
#include "support/temporary_folder.hpp"

namespace mica::test {
namespace {

namespace fs = std::filesystem;

struct Sample {
  int num_ranks;
  std::vector<std::string> flags;
};

const std::map<std::string, Sample>& sample_configs() {
  static const std::map<std::string, Sample> all{
      {"gpt2-tiny-text", {2, {"--train.micro_batch=1"}}},
      {"hybrid-2x2", {4, {"--train.micro_batch=1", "--train.global_batch=8"}}},
      {"llama-tiny-text", {2, {"--train.micro_batch=1"}}},
      {"mlp", {2, {}}},
      {"gpt2-124m",
       {2,
        {"--model.layers=1", "--model.width=32", "--model.heads=2", "--model.context=64", "--train.seq_len=64", "--train.micro_batch=1"}}},
      {"gpt2-xl", {2, {"--model.layers=1", "--model.width=32", "--model.heads=2", "--model.context=64", "--train.seq_len=64"}}},
  };
  return all;
}

TEST(Configs, EveryFileHasASample) {
  std::set<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(test::source_folder() + "/configs")) {
    if (entry.path().extension() == ".cfg") names.insert(entry.path().stem().string());
  }
  std::set<std::string> known;
  for (const auto& [name, sample] : sample_configs()) known.insert(name);
  EXPECT_EQ(names, known);
}

TEST(Configs, RunForAStep) {
  TemporaryFolder folder;
  write_tokens(folder / "tokens.bin", 20'000);
  for (const auto& [name, sample] : sample_configs()) {
    SCOPED_TRACE(name);
    const std::string run_folder = folder / name;
    std::vector<std::string> flags = sample.flags;
    for (const std::string& flag :
         {"--run.dir=" + run_folder, "--data.train=" + (folder / "tokens.bin"), "--data.val=" + (folder / "tokens.bin"),
          std::string("--train.steps=1"), std::string("--optim.warmup_steps=0"), std::string("--train.eval_batches=1")}) {
      flags.push_back(flag);
    }
    const Finished run = test::run(training(sample.num_ranks, test::source_folder() + "/configs/" + name + ".cfg", flags));
    EXPECT_EQ(run.status, 0) << run.output;
    EXPECT_THAT(run.output, ::testing::HasSubstr("warning: data.val names " + (folder / "tokens.bin") + ", as data.train does"));
    EXPECT_EQ(step_lines(run_folder).size(), 1u);
    EXPECT_EQ(checkpoints_of(run_folder), std::vector<std::string>{"step-00000001"});
    // What was resolved is a config too, and says the same.
    const std::string resolved = run_folder + "/config.resolved.cfg";
    const std::string before = read_text(resolved);
    const Finished again = test::run(training(sample.num_ranks, resolved, {}));
    EXPECT_EQ(again.status, 0) << again.output;
    EXPECT_THAT(again.output, ::testing::HasSubstr("nothing to do"));
    EXPECT_EQ(read_text(resolved), before);
  }
}

// A config of an earlier Mica, and the config.resolved.cfg that it left behind, train and go on; new names are written.
TEST(Configs, OldNamesOfKeysTrainAndResume) {
  const TemporaryFolder folder;
  write_tokens(folder / "tokens.bin", 4000);
  const auto text = [&](const std::string& intermediate_size, const std::string& gradient_sync) {
    return "[model]\ntype = mlp\nlayers = 1\nwidth = 8\n" + intermediate_size + " = 12\n[data]\ntrain = " + (folder / "tokens.bin") +
           "\n[train]\nsteps = 2\nmicro_batch = 2\nglobal_batch = 8\nseq_len = 16\nlog_interval = 1\n" + gradient_sync + " = no_sync\n";
  };
  write_text(folder / "old.cfg", text("hidden", "accumulate"));
  write_text(folder / "new.cfg", text("intermediate_size", "gradient_sync"));
  const auto count_of = [](const std::string& output, const std::string& part) {
    std::size_t count = 0;
    for (std::size_t at = 0; (at = output.find(part, at)) != std::string::npos; ++at) ++count;
    return count;
  };
  const std::string old_run = folder / "old";
  const Finished first = test::run(training(2, folder / "old.cfg", {"--run.dir=" + old_run}));
  ASSERT_EQ(first.status, 0) << first.output;
  EXPECT_EQ(count_of(first.output, "model.hidden is now called model.intermediate_size"), 1u) << first.output;
  EXPECT_EQ(count_of(first.output, "train.accumulate is now called train.gradient_sync"), 1u) << first.output;
  const std::string resolved = read_text(old_run + "/config.resolved.cfg");
  EXPECT_THAT(resolved, ::testing::HasSubstr("\nintermediate_size = 12\n"));
  EXPECT_THAT(resolved, ::testing::HasSubstr("\ngradient_sync = no_sync\n"));
  EXPECT_THAT(resolved, ::testing::Not(::testing::HasSubstr("\nhidden = ")));

  std::string before = resolved;  // as an earlier Mica would have written it
  before.replace(before.find("\nintermediate_size = "), 21, "\nhidden = ");
  before.replace(before.find("\ngradient_sync = "), 17, "\naccumulate = ");
  write_text(folder / "resolved.cfg", before);
  const Finished resumed = test::run(training(2, folder / "resolved.cfg", {"--train.steps=4"}));
  ASSERT_EQ(resumed.status, 0) << resumed.output;
  const Finished of_new = test::run(training(2, folder / "new.cfg", {"--run.dir=" + (folder / "new"), "--train.steps=2"}));
  ASSERT_EQ(of_new.status, 0) << of_new.output;
  EXPECT_EQ(count_of(of_new.output, "; the old name still works"), 0u);
  const Finished on = test::run(training(2, folder / "new.cfg", {"--run.dir=" + (folder / "new"), "--train.steps=4"}));
  ASSERT_EQ(on.status, 0) << on.output;
  EXPECT_EQ(step_lines(old_run).size(), 4u);
  EXPECT_EQ(step_lines(old_run), step_lines(folder / "new"));
}

}  // namespace
}  // namespace mica::test
