// Every file in configs/ loads and runs for a step; gpt2-124m with fewer and smaller layers.

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

const std::map<std::string, Sample>& samples() {
  static const std::map<std::string, Sample> all{
      {"gpt2-tiny-text", {2, {"--train.micro_batch=1"}}},
      {"hybrid-2x2", {4, {"--train.micro_batch=1", "--train.global_batch=8"}}},
      {"llama-tiny-text", {2, {"--train.micro_batch=1"}}},
      {"mlp", {2, {}}},
      {"gpt2-124m",
       {2,
        {"--model.layers=1", "--model.width=32", "--model.heads=2", "--model.context=64", "--train.seq_len=64",
         "--train.micro_batch=1"}}},
  };
  return all;
}

TEST(Configs, EveryFileHasASample) {
  std::set<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(test::source_folder() + "/configs")) {
    if (entry.path().extension() == ".cfg") names.insert(entry.path().stem().string());
  }
  std::set<std::string> known;
  for (const auto& [name, sample] : samples()) known.insert(name);
  EXPECT_EQ(names, known);
}

TEST(Configs, RunForAStep) {
  TemporaryFolder folder;
  write_tokens(folder / "tokens.bin", 20'000);
  for (const auto& [name, sample] : samples()) {
    SCOPED_TRACE(name);
    const std::string run_folder = folder / name;
    std::vector<std::string> flags = sample.flags;
    for (const std::string& flag : {"--run.dir=" + run_folder, "--data.train=" + (folder / "tokens.bin"), "--data.val=" + (folder / "tokens.bin"),
                                    std::string("--train.steps=1"), std::string("--optim.warmup_steps=0"), std::string("--train.eval_batches=1")}) {
      flags.push_back(flag);
    }
    const Finished run = test::run(training(sample.num_ranks, test::source_folder() + "/configs/" + name + ".cfg", flags));
    EXPECT_EQ(run.status, 0) << run.output;
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

}  // namespace
}  // namespace mica::test
