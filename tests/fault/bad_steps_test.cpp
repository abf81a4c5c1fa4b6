// SPDX-License-Identifier: Apache-2.0
// Steps whose loss or gradients are bad, by parameters that are: a model from a Hugging Face folder in which someone has put NaN or
// numbers out of range.

#include <algorithm>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "fault/support/training.hpp"
#include "support/paths.hpp"
#include "support/temporary_folder.hpp"

namespace mica::test {
namespace {

namespace fs = std::filesystem;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using Json = nlohmann::json;

/// Overwrites `count` elements of a parameter, from `first` on, in a folder of safetensors files.
void poison(const std::string& folder, const std::string& name, std::int64_t first, std::int64_t count, float value) {
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() != ".safetensors") continue;
    std::fstream file(entry.path(), std::ios::binary | std::ios::in | std::ios::out);
    std::uint64_t header_bytes = 0;
    file.read(reinterpret_cast<char*>(&header_bytes), 8);
    std::string header(header_bytes, '\0');
    file.read(header.data(), static_cast<std::streamsize>(header_bytes));
    const Json tensors = Json::parse(header);
    for (const auto& [key, tensor] : tensors.items()) {
      if (key != name && !key.ends_with("." + name)) continue;
      file.seekp(static_cast<std::streamoff>(8 + header_bytes + tensor.at("data_offsets").at(0).get<std::uint64_t>()) + 4 * first);
      for (std::int64_t i = 0; i < count; ++i) file.write(reinterpret_cast<const char*>(&value), 4);
      return;
    }
  }
  FAIL() << "no parameter " << name << " in " << folder;
}

class BadSteps : public ::testing::Test {
 protected:
  static constexpr std::int64_t kSeqLen = 12, kBatch = 12, kSteps = 20, kWidth = 20;
  static constexpr std::int64_t kBadStep = 7;
  static constexpr int kBadToken = 36;  // the data has smaller ones

  BadSteps() {
    fs::copy(test::reference_path("hf_gpt2_untied"), folder_ / "hf");
    fs::permissions(folder_ / "hf", fs::perms::owner_all, fs::perm_options::add);
    write_tokens(folder_ / "tokens.bin", 20'000);
    write_text(folder_ / "run.cfg",
               "[model]\ninit_from = " + (folder_ / "hf") + "\n[data]\norder = sequential\ntrain = " + (folder_ / "tokens.bin") +
                   "\n[train]\nsteps = " + std::to_string(kSteps) + "\nmicro_batch = 1\nglobal_batch = " + std::to_string(kBatch) +
                   "\nseq_len = " + std::to_string(kSeqLen) + "\nlog_interval = 1\ndeterministic = true\n");
  }
  /// The embedding of a token that this step sees, in a run that leaves nothing out, is NaN.
  void poison_a_token(std::int64_t step = kBadStep) {
    poison(folder_ / "hf", "wte.weight", kBadToken * kWidth, kWidth, std::numeric_limits<float>::quiet_NaN());
    overwrite_token(folder_ / "tokens.bin", ((step - 1) * kBatch + 5) * kSeqLen + 3, kBadToken);
  }
  /// Numbers are finite, and so are sums of their squares; what comes out of the MLP is not.
  void poison_an_mlp() {
    for (const std::string parameter : {"h.0.ln_2.weight", "h.0.mlp.c_fc.weight", "h.0.mlp.c_proj.weight"}) {
      poison(folder_ / "hf", parameter, 0, 1, 1e18F);
    }
  }
  [[nodiscard]] std::string run_folder(const std::string& name) const { return folder_ / name; }
  [[nodiscard]] std::vector<std::string> command(const std::string& name, int num_ranks, std::vector<std::string> flags) const {
    flags.push_back("--run.dir=" + run_folder(name));
    return training(num_ranks, folder_ / "run.cfg", flags);
  }
  [[nodiscard]] Finished train(const std::string& name, int num_ranks, const std::vector<std::string>& flags) const {
    return test::run(command(name, num_ranks, flags));
  }
  [[nodiscard]] std::vector<Json> rows(const std::string& name, const std::string& event) const {
    std::vector<Json> found;
    std::ifstream file(run_folder(name) + "/metrics.jsonl");
    for (std::string line; std::getline(file, line);) {
      Json row = Json::parse(line, nullptr, false);
      if (!row.is_discarded() && row.at("event") == event) found.push_back(std::move(row));
    }
    return found;
  }
  void expect_same_end(const std::string& a, const std::string& b) const {
    const auto last = [&](const std::string& name) { return run_folder(name) + "/checkpoints/" + checkpoints_of(run_folder(name)).back(); };
    EXPECT_EQ(fs::path(last(a)).filename(), "step-00000020");
    const Finished diff = test::run({program("mica-inspect"), "diff", last(a), last(b)});
    EXPECT_EQ(diff.status, 0) << diff.output;
  }

  TemporaryFolder folder_;
};

TEST_F(BadSteps, AreTrainedOnWithAWarningUnlessAskedFor) {
  poison_a_token();
  const Finished run = train("none", 2, {});
  EXPECT_EQ(run.status, 0) << run.output;
  EXPECT_THAT(run.output, HasSubstr("the loss of step 7 is NaN or infinite: train.on_bad_step = stop, skip or rollback"));
  const std::vector<Json> steps = rows("none", "step");
  EXPECT_TRUE(steps.at(5).at("loss").is_number());
  EXPECT_EQ(steps.back().at("loss"), "nan") << "one step has spoilt the model";
}

// As after an update that spoils the model: no loss has seen it yet.
TEST_F(BadSteps, ParametersThatNoStepHasUsedMarkACheckpoint) {
  poison_a_token();
  ASSERT_EQ(train("unused", 2, {"--train.steps=3"}).status, 0);
  EXPECT_TRUE(rows("unused", "step").back().at("loss").is_number());
  EXPECT_EQ(Json::parse(read_text(run_folder("unused") + "/checkpoints/step-00000003/manifest.json")).at("diverged"), true);
}

TEST_F(BadSteps, StopSavesTheStepBeforeAndNamesTheUnit) {
  poison_a_token();
  for (const int num_ranks : {1, 3}) {
    const std::string name = "stop" + std::to_string(num_ranks);
    const Finished run = train(name, num_ranks, {"--train.on_bad_step=stop"});
    EXPECT_EQ(run.status, 3) << run.output;
    ASSERT_EQ(run.error_lines().size(), 1u) << run.output;
    EXPECT_THAT(run.error_lines()[0], HasSubstr("step 7 is bad: the loss is NaN or infinite; unit root: its parameters; the step changed "
                                                "nothing, and step 6 is saved"));
    EXPECT_EQ(checkpoints_of(run_folder(name)), std::vector<std::string>{"step-00000006"});
    ASSERT_EQ(rows(name, "bad_step").size(), 1u);
    EXPECT_EQ(rows(name, "bad_step")[0].at("step"), kBadStep);
    EXPECT_EQ(rows(name, "bad_step")[0].at("action"), "stop");
  }
  // It goes on once asked to.
  const Finished resumed = train("stop3", 3, {"--train.on_bad_step=skip"});
  EXPECT_EQ(resumed.status, 0) << resumed.output;
  ASSERT_EQ(train("skip", 2, {"--train.on_bad_step=skip"}).status, 0);
  expect_same_end("stop3", "skip");
}

// Step 6 is saved without its optimizer before step 7 goes bad.
TEST_F(BadSteps, StopSavesWhatCanBeResumedInPlaceOfTheModelAlone) {
  poison_a_token();
  const std::vector<std::string> alone{"--train.on_bad_step=stop", "--checkpoint.interval=3", "--checkpoint.optimizer=false"};
  const Finished run = train("alone", 2, alone);
  EXPECT_EQ(run.status, 3) << run.output;
  EXPECT_THAT(run.output, HasSubstr("and step 6 is saved"));
  const Json manifest = Json::parse(read_text(run_folder("alone") + "/checkpoints/step-00000006/manifest.json"));
  EXPECT_EQ(manifest.at("parent").at("step"), 3) << "not the one that it replaces";
  const Finished resumed = train("alone", 2, {"--train.on_bad_step=skip"});
  EXPECT_EQ(resumed.status, 0) << resumed.output;
  ASSERT_EQ(train("skip", 2, {"--train.on_bad_step=skip"}).status, 0);
  expect_same_end("alone", "skip");
}

TEST_F(BadSteps, SkipLeavesTheModelAsItIsOnAllRanks) {
  poison_a_token();
  const std::vector<std::string> skip{"--train.on_bad_step=skip"};
  const Finished one = train("one", 1, skip);
  ASSERT_EQ(one.status, 0) << one.output;
  EXPECT_THAT(one.output, HasSubstr("step 7 is bad: the loss is NaN or infinite; unit root: its parameters; it is skipped"));
  EXPECT_THAT(one.output, ContainsRegex("step +7/20 .*nan")) << "it is a step that is logged";
  const std::vector<Json> steps = rows("one", "step");
  ASSERT_EQ(steps.size(), static_cast<std::size_t>(kSteps));
  for (const Json& step : steps) {
    const bool is_bad = step.at("step") == kBadStep;
    EXPECT_EQ(step.at("loss").is_number(), !is_bad) << step;
    EXPECT_EQ(step.contains("skipped"), is_bad) << step;
  }
  ASSERT_EQ(train("two", 2, skip).status, 0);
  expect_same_end("one", "two");
  const std::vector<std::string> grid{"--train.on_bad_step=skip", "--fsdp.strategy=hybrid_shard", "--mesh.shard_size=2"};
  ASSERT_EQ(train("grid", 4, grid).status, 0);
  expect_same_end("one", "grid");
  // The same in a launch for each step.
  int status = 75;
  for (int launches = 0; status == 75 && launches < kSteps; ++launches) {
    status = train("parts", 2, {"--train.on_bad_step=skip", "--train.max_hours=1e-9"}).status;
  }
  EXPECT_EQ(status, 0);
  expect_same_end("one", "parts");
}

// The passes that look for the unit are none of its products.
TEST_F(BadSteps, AFirstStepThatIsSkippedCountsItsProductsOnce) {
  const auto flops_of = [&](const std::string& name) {  // in 10^6
    const Finished run = train(name, 2, {"--train.on_bad_step=skip", "--train.steps=3"});
    EXPECT_EQ(run.status, 0) << run.output;
    EXPECT_EQ(run.output.find("step 1 is bad: ") != std::string::npos, name == "bad") << run.output;
    EXPECT_EQ(run.output.find("h.0: its output in forward") != std::string::npos, name == "bad") << run.output;
    const Json last = rows(name, "step").back();
    return last.at("gflop_per_s").get<double>() * last.at("step_ms").get<double>();
  };
  const double good = flops_of("good");
  poison_an_mlp();
  EXPECT_NEAR(flops_of("bad") / good, 1, 0.01);
}

TEST_F(BadSteps, RollbackLeavesTheDataOutForGood) {
  poison_a_token();
  const std::vector<std::string> flags{"--train.on_bad_step=rollback", "--checkpoint.interval=4", "--checkpoint.keep=0"};
  const Finished run = train("whole", 2, flags);
  ASSERT_EQ(run.status, 0) << run.output;
  EXPECT_THAT(run.output, HasSubstr("rolled back to " + run_folder("whole") +
                                    "/checkpoints/step-00000004, step 4; the data of steps 5 to 7 is skipped"));
  ASSERT_EQ(rows("whole", "rolled_back").size(), 1u);
  EXPECT_EQ(rows("whole", "rolled_back")[0].at("step"), 4);
  EXPECT_EQ(rows("whole", "rolled_back")[0].at("bad_step"), kBadStep);
  const std::vector<Json> steps = rows("whole", "step");
  ASSERT_EQ(steps.size(), static_cast<std::size_t>(kSteps)) << "each step once";
  for (const Json& step : steps) EXPECT_TRUE(step.at("loss").is_number()) << step;
  const Json manifest = Json::parse(read_text(run_folder("whole") + "/checkpoints/step-00000004/manifest.json"));
  EXPECT_EQ(manifest.at("sequences"), kBadStep * kBatch) << "the next step begins behind the bad one's data";
  EXPECT_EQ(manifest.at("tokens"), 4 * kBatch * kSeqLen) << "what was left out is not counted";

  // Killed right after it, and resumed: nothing of it is read again.
  {
    Child child(command("killed", 2, flags));
    const std::vector<pid_t> ranks = child.ranks(2);
    ASSERT_TRUE(child.wait_for("is skipped")) << child.wait(0).output;
    while (child.is_running() && rows("killed", "checkpoint").size() < 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    for (const pid_t rank : ranks) ::kill(rank, SIGKILL);
    (void)child.wait(20);
  }
  const Finished resumed = train("killed", 2, flags);
  ASSERT_EQ(resumed.status, 0) << resumed.output;
  EXPECT_THAT(resumed.output, ::testing::Not(HasSubstr("is bad")));
  expect_same_end("whole", "killed");
  ASSERT_EQ(train("alone", 1, flags).status, 0);
  expect_same_end("whole", "alone");
}

// Step 6 was evaluated last when step 7 goes bad, and step 4 is saved again.
TEST_F(BadSteps, RollbackKeepsTheCheckpointsValidationLoss) {
  poison_a_token();
  write_tokens(folder_ / "val.bin", 2000);
  const Finished run = train("val", 2,
                             {"--train.on_bad_step=rollback", "--checkpoint.interval=4", "--checkpoint.keep=0",
                              "--data.val=" + (folder_ / "val.bin"), "--train.eval_interval=2"});
  ASSERT_EQ(run.status, 0) << run.output;
  ASSERT_EQ(rows("val", "rolled_back").size(), 1u);
  std::map<std::int64_t, Json> losses;
  for (const Json& row : rows("val", "eval")) losses[row.at("step")] = row.at("val_loss");
  for (const std::int64_t step : {4, 8}) {
    const std::string path = run_folder("val") + "/checkpoints/step-0000000" + std::to_string(step) + "/manifest.json";
    EXPECT_EQ(Json::parse(read_text(path)).at("val_loss"), losses.at(step)) << "step " << step;
  }
}

TEST_F(BadSteps, ThatNeverEndStopTheRun) {
  poison_an_mlp();
  const Finished skipped = train("skip", 2, {"--train.on_bad_step=skip"});
  EXPECT_EQ(skipped.status, 3) << skipped.output;
  EXPECT_THAT(skipped.output, HasSubstr("step 10 is bad: "));
  EXPECT_THAT(skipped.output, HasSubstr("10 steps in a row were"));
  EXPECT_THAT(skipped.output, HasSubstr("h.0: its output in forward"));
  const Finished back = train("rollback", 2, {"--train.on_bad_step=rollback"});
  EXPECT_EQ(back.status, 3) << back.output;
  EXPECT_THAT(back.output, HasSubstr("step 1 is bad: "));
  EXPECT_THAT(back.output, HasSubstr("there is no checkpoint to roll back to"));
  EXPECT_TRUE(checkpoints_of(run_folder("rollback")).empty());
}

TEST_F(BadSteps, DataThatStaysBadEndsTheRunAfterThreeRollbacks) {
  for (std::int64_t step = kBadStep; step < 40; ++step) poison_a_token(step);
  const Finished run = train("back", 2, {"--train.on_bad_step=rollback", "--checkpoint.interval=4"});
  EXPECT_EQ(run.status, 3) << run.output;
  EXPECT_THAT(
      run.output,
      HasSubstr("step 5 is bad: the loss is NaN or infinite; unit root: its parameters; the run was rolled back to step 4 3 times"));
  EXPECT_EQ(checkpoints_of(run_folder("back")), std::vector<std::string>{"step-00000004"});
  const Json manifest = Json::parse(read_text(run_folder("back") + "/checkpoints/step-00000004/manifest.json"));
  EXPECT_EQ(manifest.at("sequences"), 9 * kBatch) << "each left out a step more";
}

// By metrics.jsonl: the norm of a good step counts in the mean, that of a bad one does not.
TEST_F(BadSteps, ASpikeIsANormFarAboveItsMean) {
  constexpr double kFactor = 1.05;
  const std::vector<std::string> flags{"--train.on_bad_step=skip", "--train.grad_norm_spike=1.05", "--train.steps=60", "--optim.lr=1e-4",
                                       "--optim.schedule=constant"};
  const Finished run = train("spikes", 2, flags);
  ASSERT_EQ(run.status, 0) << run.output;
  EXPECT_THAT(run.output, HasSubstr("times its running mean"));
  double mean = 0;
  int num_good = 0, num_bad = 0;
  for (const Json& step : rows("spikes", "step")) {
    const double norm = step.at("grad_norm");
    const bool is_spike = num_good >= 10 && norm > kFactor * mean;
    EXPECT_EQ(step.contains("skipped"), is_spike) << step << " mean " << mean;
    num_bad += is_spike;
    if (is_spike) continue;
    ++num_good;
    mean += (norm - mean) / std::min(num_good, 50);
  }
  EXPECT_GT(num_bad, 0);
  for (const Json& row : rows("spikes", "bad_step")) EXPECT_THAT(row.at("what").get<std::string>(), HasSubstr("the largest gradient"));
  // A resume knows the mean.
  std::vector<std::string> half = flags;
  half.emplace_back("--checkpoint.interval=30");
  {
    Child child(command("halves", 2, half));
    const std::vector<pid_t> ranks = child.ranks(2);
    while (child.is_running() && checkpoints_of(run_folder("halves")).empty()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    for (const pid_t rank : ranks) ::kill(rank, SIGKILL);
    (void)child.wait(20);
  }
  ASSERT_EQ(train("halves", 2, half).status, 0);
  EXPECT_EQ(step_lines(run_folder("halves")), step_lines(run_folder("spikes")));
}

TEST_F(BadSteps, WhatCannotBeJudgedIsRefused) {
  const auto expect_refusal = [&](const std::vector<std::string>& flags, const std::string& text) {
    const Finished run = train("refused", 1, flags);
    EXPECT_EQ(run.status, 2) << run.output;
    EXPECT_THAT(run.output, HasSubstr(text));
  };
  expect_refusal({"--train.grad_norm_spike=3"}, "train.grad_norm_spike = 3 has no effect with train.on_bad_step = none");
  expect_refusal({"--train.on_bad_step=skip", "--fsdp.param_dtype=fp16"}, "does not go with fp16");
  expect_refusal({"--train.on_bad_step=skip", "--optim.in_backward=true", "--optim.grad_clip=0"},
                 "judges the whole gradient before the optimizer steps");
  expect_refusal({"--train.on_bad_step=rollback", "--checkpoint.optimizer=false"},
                 "train.on_bad_step = rollback needs checkpoints with the optimizer state, but checkpoint.optimizer = false");
}

}  // namespace
}  // namespace mica::test
