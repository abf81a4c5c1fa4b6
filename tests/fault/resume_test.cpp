// SPDX-License-Identifier: Apache-2.0
// A run that is killed with SIGKILL and started again gives, bit for bit, what an undisturbed run gives.

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <thread>

#include <gtest/gtest.h>
#include <unistd.h>

#include "fault/support/training.hpp"
#include "support/temporary_folder.hpp"

namespace mica::test {
namespace {

namespace fs = std::filesystem;

/// Large enough that steps and saves take milliseconds: a killer has to hit them.
class Resume : public ::testing::Test {
 protected:
  static constexpr int kRanks = 2;
  static constexpr std::int64_t kSteps = 24;

  static void SetUpTestSuite() {
    folder_ = new TemporaryFolder();
    write_tokens(*folder_ / "tokens.bin", 50'000);
    write_text(*folder_ / "run.cfg",
               "[model]\ntype = gpt2\nlayers = 3\nheads = 4\nwidth = 96\nvocab_size = 256\ncontext = 64\ndropout = 0.1\n"
               "[data]\ntrain = " +
                   (*folder_ / "tokens.bin") +
                   "\n"
                   "[fsdp]\nparam_dtype = fp32\n"
                   "[train]\nsteps = " +
                   std::to_string(kSteps) +
                   "\nmicro_batch = 2\nglobal_batch = 8\nseq_len = 64\nlog_interval = 1\n"
                   "[optim]\nwarmup_steps = 5\n"
                   "[checkpoint]\ninterval = 8\nkeep = 0\n");
    const Finished run = test::run(command("undisturbed"));
    ASSERT_EQ(run.status, 0) << run.output;
    ASSERT_EQ(step_lines(run_folder("undisturbed")).size(), static_cast<std::size_t>(kSteps));
  }
  static void TearDownTestSuite() {
    delete folder_;
    folder_ = nullptr;
  }

  static std::string run_folder(const std::string& name) { return *folder_ / name; }
  static std::string checkpoint(const std::string& name, int step) {
    char text[32];
    std::snprintf(text, sizeof text, "/checkpoints/step-%08d", step);
    return run_folder(name) + text;
  }
  static std::vector<std::string> command(const std::string& name) {
    return training(kRanks, *folder_ / "run.cfg", {"--run.dir=" + run_folder(name)});
  }

  /// Starts a run and kills all ranks once `is_time()`. @returns false if it ended before.
  template <class Condition>
  [[nodiscard]] bool run_and_kill(const std::string& name, Condition&& is_time) {
    fs::remove_all(run_folder(name));
    Child child(command(name));
    const std::vector<pid_t> ranks = child.ranks(kRanks);
    EXPECT_EQ(ranks.size(), static_cast<std::size_t>(kRanks));
    for (int polls = 0; !is_time(); ++polls) {
      if (polls % 256 == 0 && !child.is_running()) return false;
    }
    for (const pid_t rank : ranks) ::kill(rank, SIGKILL);
    const Finished killed = child.wait(20);
    EXPECT_FALSE(killed.is_timed_out);
    return killed.status != 0;
  }

  /// Starts runs until the kill at `is_time()` leaves what `is_wanted()` looks for: on a busy machine many come too late.
  template <class Condition, class Check>
  [[nodiscard]] bool kills_in_time(const std::string& name, Condition&& is_time, Check&& is_wanted) {
    for (int attempt = 0; attempt < 30; ++attempt) {
      if (run_and_kill(name, is_time) && is_wanted()) return true;
    }
    return false;
  }

  /// The newest checkpoint of the run, or "" when there is none.
  static std::string newest_checkpoint(const std::string& name) {
    const std::vector<std::string> checkpoints = checkpoints_of(run_folder(name));
    return checkpoints.empty() ? "" : checkpoints.back();
  }

  /// Starts the same command again: it goes on at `saved` + 1 and ends as the undisturbed run.
  void resume_and_compare(const std::string& name, std::int64_t saved) {
    const Finished run = test::run(command(name));
    ASSERT_EQ(run.status, 0) << run.output;
    EXPECT_EQ(first_progress_step(run.output), saved + 1) << run.output;
    EXPECT_EQ(step_lines(run_folder(name)), step_lines(run_folder("undisturbed"))) << "each step once, with the same figures";
    const Finished diff = test::run({program("mica-inspect"), "diff", checkpoint("undisturbed", kSteps), checkpoint(name, kSteps)});
    EXPECT_EQ(diff.status, 0) << diff.output;
  }

  static TemporaryFolder* folder_;
};

TemporaryFolder* Resume::folder_ = nullptr;

TEST_F(Resume, TheComparisonCanFail) {
  const Finished diff = test::run({program("mica-inspect"), "diff", checkpoint("undisturbed", kSteps), checkpoint("undisturbed", 16)});
  EXPECT_EQ(diff.status, 1) << diff.output;
}

TEST_F(Resume, KilledBeforeTheFirstSave) {
  ASSERT_TRUE(kills_in_time(
      "early", [] { return step_lines(run_folder("early")).size() >= 3; }, [] { return newest_checkpoint("early").empty(); }));
  resume_and_compare("early", 0);
}

TEST_F(Resume, KilledBetweenSaves) {
  ASSERT_TRUE(kills_in_time(
      "between", [] { return step_lines(run_folder("between")).size() >= 11; },
      [] { return newest_checkpoint("between") == "step-00000008"; }));
  EXPECT_GE(step_lines(run_folder("between")).size(), 11u);
  resume_and_compare("between", 8);
}

TEST_F(Resume, KilledInsideASave) {
  // The folder of a save that is under way exists for some milliseconds: step-00000016.RUNID.tmp.
  const auto is_half_there = [&] {
    std::error_code none;
    const fs::directory_iterator entries(run_folder("inside") + "/checkpoints", none);
    return std::any_of(begin(entries), end(entries), [](const fs::directory_entry& entry) {
      const std::string name = entry.path().filename();
      return name.starts_with("step-00000016.") && name.ends_with(".tmp");
    });
  };
  ASSERT_TRUE(kills_in_time("inside", is_half_there, [&] { return is_half_there() && !fs::exists(checkpoint("inside", 16)); }));
  resume_and_compare("inside", 8);
  EXPECT_FALSE(is_half_there());
}

TEST_F(Resume, KilledRightAfterASave) {
  const std::string whole = checkpoint("after", 16);
  ASSERT_TRUE(kills_in_time(
      "after", [&] { return ::access(whole.c_str(), F_OK) == 0; }, [] { return newest_checkpoint("after") == "step-00000016"; }));
  resume_and_compare("after", 16);
}

// D7: the loss scale of fp16 training is part of what goes on: 2^22 overflows at once, and every third good step
// doubles it. At step 13 some steps have been skipped (which the bias correction leaves out) and two good ones have
// been counted.
TEST_F(Resume, D7_Fp16GoesOnWithItsLossScale) {
  const std::vector<std::string> flags{"--fsdp.param_dtype=fp16", "--optim.loss_scale=4194304", "--checkpoint.interval=13",
                                       "--optim.loss_scale_interval=3", "--run.dir=" + run_folder("fp16")};
  const auto train = [&] { return test::run(training(kRanks, *folder_ / "run.cfg", flags)); };
  const Finished whole = train();
  ASSERT_EQ(whole.status, 0) << whole.output;
  const auto num_skipped = [](const std::string& output) {
    int skipped = 0;
    for (std::size_t at = 0; (at = output.find("(overflow: skipped)", at)) != std::string::npos; ++at) ++skipped;
    return skipped;
  };
  EXPECT_GE(num_skipped(whole.output.substr(0, whole.output.find("saved "))), 1) << whole.output;
  EXPECT_LE(num_skipped(whole.output), kSteps / 2) << whole.output;
  const std::string manifest = read_text(checkpoint("fp16", 13) + "/manifest.json");
  EXPECT_NE(manifest.find("\"loss_scale_growth_tracker\": 2.0"), std::string::npos) << manifest;
  EXPECT_NE(whole.output.find("no native fp16 products here"), std::string::npos) << whole.output;
  fs::rename(checkpoint("fp16", kSteps), run_folder("fp16.end"));
  const Finished resumed = train();
  ASSERT_EQ(resumed.status, 0) << resumed.output;
  EXPECT_EQ(first_progress_step(resumed.output), 14);
  const Finished diff = test::run({program("mica-inspect"), "diff", run_folder("fp16.end"), checkpoint("fp16", kSteps)});
  EXPECT_EQ(diff.status, 0) << diff.output;
}

// D10: from the config, the same bits as stepping after backward; it refuses what it cannot do.
TEST_F(Resume, D10_AnOptimizerInBackwardGivesTheSameRun) {
  const auto train = [&](const std::string& name, std::vector<std::string> flags) {
    for (const char* flag : {"--optim.grad_clip=0", "--train.gradient_sync=no_sync"}) {
      flags.emplace_back(flag);
    }
    flags.push_back("--run.dir=" + run_folder(name));
    return test::run(training(kRanks, *folder_ / "run.cfg", flags));
  };
  ASSERT_EQ(train("by_hand", {}).status, 0);
  const Finished in_backward = train("in_backward", {"--optim.in_backward=true"});
  ASSERT_EQ(in_backward.status, 0) << in_backward.output;
  EXPECT_NE(in_backward.output.find("norm unknown"), std::string::npos) << in_backward.output;
  const Finished diff = test::run({program("mica-inspect"), "diff", checkpoint("by_hand", kSteps), checkpoint("in_backward", kSteps)});
  EXPECT_EQ(diff.status, 0) << diff.output;
  for (const auto& [flag, error] :
       std::vector<std::pair<std::string, std::string>>{{"--optim.grad_clip=1", "and optim.grad_clip is 1"},
                                                        {"--train.gradient_sync=reduce_each", "set train.gradient_sync = no_sync"}}) {
    const Finished refused = test::run(training(
        kRanks, *folder_ / "run.cfg",
        {"--optim.in_backward=true", "--optim.grad_clip=0", "--train.gradient_sync=no_sync", flag, "--run.dir=" + run_folder("refused")}));
    EXPECT_EQ(refused.status, 2) << refused.output;
    EXPECT_NE(refused.output.find(error), std::string::npos) << refused.output;
  }
}

// Another number of ranks, sharding, strategy or wrapping: the same global batches go on, to the rounding of other orders of
// reduction.
TEST_F(Resume, F2_GoesOnOnAnyMesh) {
  const auto copy_until = [&](const std::string& name, int step) {
    fs::create_directories(run_folder(name) + "/checkpoints");
    fs::copy(checkpoint("undisturbed", step), checkpoint(name, step), fs::copy_options::recursive);
  };
  const std::vector<StepLine> expected = step_lines(run_folder("undisturbed"));
  struct Mesh {
    std::string name;
    int num_ranks;
    std::vector<std::string> flags;
  };
  for (const Mesh& mesh : std::vector<Mesh>{{"one", 1, {"--fsdp.wrap=none"}},
                                            {"four", 4, {"--fsdp.sharding=per_parameter"}},
                                            {"hybrid", 4, {"--fsdp.strategy=hybrid_shard", "--mesh.shard_size=2"}},
                                            {"replicated", 2, {"--fsdp.strategy=no_shard"}}}) {
    copy_until(mesh.name, 16);
    std::vector<std::string> flags = mesh.flags;
    flags.push_back("--run.dir=" + run_folder(mesh.name));
    const Finished run = test::run(training(mesh.num_ranks, *folder_ / "run.cfg", flags));
    ASSERT_EQ(run.status, 0) << run.output;
    EXPECT_NE(run.output.find("written by 2 ranks (2 x 1)"), std::string::npos) << run.output;
    EXPECT_EQ(first_progress_step(run.output), 17) << run.output;
    const std::vector<StepLine> lines = step_lines(run_folder(mesh.name));
    ASSERT_EQ(lines.size(), 8u);
    for (std::size_t i = 0; i < lines.size(); ++i) {
      EXPECT_EQ(lines[i].step, expected[16 + i].step);
      EXPECT_NEAR(lines[i].loss, expected[16 + i].loss, 1e-4) << mesh.name << " step " << lines[i].step;
    }
  }
}

// Written in the background, checkpoints hold the same bits, and a kill while one is written costs no older one.
TEST_F(Resume, InTheBackground) {
  const auto flags = [&](const std::string& name) {
    return training(kRanks, *folder_ / "run.cfg", {"--checkpoint.async=true", "--run.dir=" + run_folder(name)});
  };
  const Finished run = test::run(flags("async"));
  ASSERT_EQ(run.status, 0) << run.output;
  EXPECT_NE(run.output.find("training stalled"), std::string::npos) << run.output;
  EXPECT_EQ(checkpoints_of(run_folder("async")), checkpoints_of(run_folder("undisturbed")));
  for (const int step : {8, 16, 24}) {
    const Finished diff = test::run({program("mica-inspect"), "diff", checkpoint("undisturbed", step), checkpoint("async", step)});
    EXPECT_EQ(diff.status, 0) << diff.output;
  }
  EXPECT_EQ(step_lines(run_folder("async")), step_lines(run_folder("undisturbed")));
  fs::remove_all(checkpoint("async", 24));
  const Finished resumed = test::run(flags("async"));
  ASSERT_EQ(resumed.status, 0) << resumed.output;
  EXPECT_EQ(first_progress_step(resumed.output), 17) << resumed.output;
}

TEST_F(Resume, MinutesDecideToo) {
  const Finished run = test::run(training(kRanks, *folder_ / "run.cfg",
                                          {"--checkpoint.interval=0", "--checkpoint.interval_minutes=1e-9", "--train.steps=4",
                                           "--optim.warmup_steps=1", "--checkpoint.async=true", "--run.dir=" + run_folder("minutes")}));
  ASSERT_EQ(run.status, 0) << run.output;
  EXPECT_EQ(checkpoints_of(run_folder("minutes")).front(), "step-00000001") << "ranks agree after the first step: " << run.output;
}

// A failure in the background, and one of rank 0 alone at the start, end the run on every rank with one message.
TEST_F(Resume, FailuresBesideTheBackground) {
  const auto flags = [&](const std::string& name) {
    return training(kRanks, *folder_ / "run.cfg",
                    {"--checkpoint.async=true", "--checkpoint.interval=1", "--train.steps=1000000", "--run.dir=" + run_folder(name)});
  };
  Child child(flags("lost"));
  for (int polls = 0; checkpoints_of(run_folder("lost")).empty(); ++polls) {
    ASSERT_TRUE(child.is_running() && polls < 60'000) << child.wait(0).output;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  // The folder is gone, and nothing can be made in its place.
  fs::rename(run_folder("lost") + "/checkpoints", run_folder("lost") + "/moved");
  write_text(run_folder("lost") + "/checkpoints", "");
  const Finished lost = child.wait(30);
  EXPECT_FALSE(lost.is_timed_out) << lost.output;
  EXPECT_NE(lost.status, 0);
  EXPECT_EQ(lost.error_lines().size(), 1u) << lost.output;
  EXPECT_NE(lost.output.find(run_folder("lost") + "/checkpoints"), std::string::npos) << lost.output;

  fs::create_directories(run_folder("unwritable") + "/metrics.jsonl");
  const Finished unwritable = test::run(flags("unwritable"), 30);
  EXPECT_EQ(unwritable.status, 2) << unwritable.output;
  EXPECT_EQ(unwritable.error_lines().size(), 1u) << unwritable.output;
}

TEST_F(Resume, AFinishedRunDoesNothing) {
  const auto before = contents_of(run_folder("undisturbed") + "/checkpoints");
  const Finished run = test::run(command("undisturbed"));
  EXPECT_EQ(run.status, 0) << run.output;
  EXPECT_NE(run.output.find("nothing to do"), std::string::npos) << run.output;
  EXPECT_EQ(contents_of(run_folder("undisturbed") + "/checkpoints"), before);
  EXPECT_EQ(step_lines(run_folder("undisturbed")).size(), static_cast<std::size_t>(kSteps));
}

}  // namespace
}  // namespace mica::test
