// SPDX-License-Identifier: Apache-2.0
// Ranks are killed in training. Those that are left save the last step, if they hold all shards, and the run goes on there on the
// ranks that remain.

#include <csignal>
#include <filesystem>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fault/support/training.hpp"
#include "support/temporary_folder.hpp"

namespace mica::test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

const std::vector<std::string> kGrid{"--fsdp.strategy=hybrid_shard", "--mesh.shard_size=2"};

/// The same bits on any number of ranks; no checkpoint before the last step.
class LostRanks : public ::testing::Test {
 protected:
  static constexpr int kRanks = 4;
  static constexpr std::int64_t kSteps = 60;

  static void SetUpTestSuite() {
    folder_ = new TemporaryFolder();
    write_tokens(*folder_ / "tokens.bin", 50'000);
    write_text(*folder_ / "run.cfg",
               "[model]\ntype = gpt2\nlayers = 2\nheads = 2\nwidth = 32\nvocab_size = 256\ncontext = 32\ndropout = 0.1\n"
               "[data]\ntrain = " +
                   (*folder_ / "tokens.bin") +
                   "\n"
                   "[train]\nsteps = " +
                   std::to_string(kSteps) +
                   "\nmicro_batch = 1\nglobal_batch = 12\nseq_len = 32\nlog_interval = 1\ndeterministic = true\n"
                   "[checkpoint]\nkeep = 0\n");
    const Finished run = test::run(command("undisturbed", kRanks, kGrid));
    ASSERT_EQ(run.status, 0) << run.output;
    ASSERT_THAT(run.output, HasSubstr("a lost rank costs no step"));
  }
  static void TearDownTestSuite() {
    delete folder_;
    folder_ = nullptr;
  }

  static std::string run_folder(const std::string& name) { return *folder_ / name; }
  static std::vector<std::string> command(const std::string& name, int num_ranks, std::vector<std::string> flags) {
    flags.push_back("--run.dir=" + run_folder(name));
    return training(num_ranks, *folder_ / "run.cfg", flags);
  }

  struct Loss {
    std::vector<std::string> flags = kGrid;
    std::vector<int> killed;
    /// Whether the test signals the ranks that are left, or mpirun does it: which waits for the time that it also gives them.
    bool mpirun_signals = false;
  };
  /// Kills ranks after some steps. @returns what was printed, and sets rows_ to the steps that were told before.
  Finished lose(const std::string& name, const Loss& loss) {
    Child child(command(name, kRanks, loss.flags), {{"OMPI_MCA_odls_base_sigkill_timeout", loss.mpirun_signals ? "10" : "120"}});
    std::vector<pid_t> ranks = child.ranks(kRanks);
    EXPECT_EQ(ranks.size(), static_cast<std::size_t>(kRanks));
    while (child.is_running() && step_lines(run_folder(name)).size() < 5) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    for (const int rank : loss.killed) ::kill(ranks[static_cast<std::size_t>(rank)], SIGKILL);
    std::vector<pid_t> left;
    for (int rank = 0; rank < kRanks; ++rank) {
      if (std::ranges::find(loss.killed, rank) == loss.killed.end()) left.push_back(ranks[static_cast<std::size_t>(rank)]);
    }
    const auto signal = [&] {
      for (const pid_t pid : left) ::kill(pid, SIGTERM);
    };
    if (!loss.mpirun_signals) signal();
    EXPECT_TRUE(have_ended(left, 60)) << name;
    rows_ = step_lines(run_folder(name));
    return child.wait(loss.mpirun_signals ? 60 : 0);  // mpirun would go on waiting
  }
  /// The run is saved at one step that is no earlier than the last one told, and goes on there with the bits of a run that lost nobody.
  void expect_saved_and_resumed(const std::string& name, int num_ranks, const std::vector<std::string>& flags) {
    const std::vector<std::string> saved = checkpoints_of(run_folder(name));
    ASSERT_EQ(saved.size(), 1u);
    const std::int64_t step = std::stoll(saved[0].substr(5));
    EXPECT_GE(step, rows_.back().step);
    const std::string path = run_folder(name) + "/checkpoints/" + saved[0];
    const Finished verified = test::run({program("mica-inspect"), "verify", path});
    EXPECT_EQ(verified.status, 0) << verified.output;
    for (const fs::directory_entry& entry : fs::directory_iterator(run_folder(name) + "/checkpoints")) {
      EXPECT_THAT(entry.path().filename().string(), Not(HasSubstr(".tmp")));
    }
    const Finished resumed = test::run(command(name, num_ranks, flags));
    ASSERT_EQ(resumed.status, 0) << resumed.output;
    EXPECT_EQ(first_progress_step(resumed.output), step + 1) << resumed.output;
    const std::string last = "/checkpoints/step-00000060";
    const Finished diff = test::run({program("mica-inspect"), "diff", run_folder("undisturbed") + last, run_folder(name) + last});
    EXPECT_EQ(diff.status, 0) << diff.output;
    const std::vector<StepLine> expected = step_lines(run_folder("undisturbed"));
    for (const StepLine& line : step_lines(run_folder(name))) EXPECT_EQ(line, expected[static_cast<std::size_t>(line.step - 1)]);
  }

  static TemporaryFolder* folder_;
  std::vector<StepLine> rows_;
};

TemporaryFolder* LostRanks::folder_ = nullptr;

// As in a cluster: mpirun sees that ranks have died, and ends the others after a while.
TEST_F(LostRanks, ANodeIsLostAndTheOtherSavesBeforeMpirunEndsIt) {
  const Finished lost = lose("node", {.killed = {2, 3}, .mpirun_signals = true});
  EXPECT_FALSE(lost.is_timed_out) << lost.output;
  EXPECT_THAT(lost.output, HasSubstr("rank 2 is lost: the remaining ranks saved step"));
  expect_saved_and_resumed("node", 2, kGrid);
}

TEST_F(LostRanks, TheFirstNodeIsLostAndTheRunGoesOnAsAnotherOneOnThreeRanks) {
  (void)lose("first", {.killed = {0, 1}});
  EXPECT_THAT(read_text(run_folder("first") + "/log.txt"), HasSubstr("the remaining ranks saved step"));
  expect_saved_and_resumed("first", 3, {"--fsdp.strategy=full_shard"});
}

// Another run's checkpoint, which the same command must not go back to.
TEST_F(LostRanks, WithoutTheFirstRankARunStillKnowsWhereItsLineBegan) {
  std::vector<std::string> flags = kGrid;
  flags.insert(flags.end(), {"--checkpoint.resume=" + run_folder("undisturbed") + "/checkpoints/step-00000060", "--train.steps=120"});
  (void)lose("line", {.flags = flags, .killed = {0, 1}});
  const std::vector<std::string> saved = checkpoints_of(run_folder("line"));
  ASSERT_EQ(saved.size(), 1u);
  const Finished resumed = test::run(command("line", 2, flags));
  ASSERT_EQ(resumed.status, 0) << resumed.output;
  EXPECT_EQ(first_progress_step(resumed.output), std::stoll(saved[0].substr(5)) + 1) << resumed.output;
}

TEST_F(LostRanks, ARankOfEachNodeIsLostAndTheirShardsMakeAWhole) {
  (void)lose("crossed", {.killed = {0, 3}});
  expect_saved_and_resumed("crossed", 1, {});
}

TEST_F(LostRanks, EachRankOfNoShardIsAReplica) {
  (void)lose("no_shard", {.flags = {"--fsdp.strategy=no_shard"}, .killed = {0, 1, 2}});
  expect_saved_and_resumed("no_shard", 4, kGrid);
}

TEST_F(LostRanks, MastersSideBySideAreSavedToo) {
  std::vector<std::string> flags = kGrid;
  flags.emplace_back("--mesh.backend=shared");
  (void)lose("shared", {.flags = flags, .killed = {2, 3}});
  expect_saved_and_resumed("shared", 2, kGrid);
}

// The only one left with its shard hears of the loss when the others have given up once: all try again together.
TEST_F(LostRanks, ARankThatHearsOfTheLossLateBringsItsShard) {
  const std::string run = run_folder("late");
  Child child(command("late", kRanks, kGrid), {{"OMPI_MCA_odls_base_sigkill_timeout", "120"}});
  const std::vector<pid_t> ranks = child.ranks(kRanks);
  ASSERT_EQ(ranks.size(), static_cast<std::size_t>(kRanks));
  while (child.is_running() && step_lines(run).size() < 5) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  ::kill(ranks[0], SIGSTOP);
  ::kill(ranks[2], SIGKILL);
  const auto have_given_up = [&] {
    if (!fs::exists(run + "/hang")) return false;
    for (const fs::directory_entry& launch : fs::directory_iterator(run + "/hang")) {
      if (fs::exists(launch.path() / "unsaved-00001") && fs::exists(launch.path() / "unsaved-00003")) return true;
    }
    return false;
  };
  for (int i = 0; i < 1000 && !have_given_up(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    ::kill(ranks[0], SIGSTOP);  // mpirun wakes it
  }
  EXPECT_TRUE(have_given_up());
  ::kill(ranks[0], SIGCONT);
  EXPECT_TRUE(have_ended({ranks[0], ranks[1], ranks[3]}, 60));
  rows_ = step_lines(run);
  (void)child.wait(0);
  expect_saved_and_resumed("late", kRanks, kGrid);
}

TEST_F(LostRanks, WithoutAllShardsNothingIsSaved) {
  Child child(command("both", kRanks, kGrid), {{"OMPI_MCA_odls_base_sigkill_timeout", "120"}});
  const std::vector<pid_t> ranks = child.ranks(kRanks);
  while (child.is_running() && step_lines(run_folder("both")).size() < 5) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  for (const int rank : {1, 3}) ::kill(ranks[static_cast<std::size_t>(rank)], SIGKILL);
  for (const int rank : {0, 2}) ::kill(ranks[static_cast<std::size_t>(rank)], SIGTERM);
  // mpirun prints no more while it waits to kill the others.
  const std::string log = run_folder("both") + "/log.txt", told = "the remaining ranks cannot save: of 2 shards of step ";
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (std::chrono::steady_clock::now() < deadline && read_text(log).find(told) == std::string::npos) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  EXPECT_THAT(read_text(log), HasSubstr(told)) << child.wait(0).output;
  EXPECT_TRUE(checkpoints_of(run_folder("both")).empty());
  (void)child.wait(0);
}

// Two ranks of 4 sequences make 24 in three rounds; four ranks cannot, but with 3 each they do.
TEST_F(LostRanks, OnOtherRanksTheGlobalBatchIsKeptWithASmallerMicroBatch) {
  const std::vector<std::string> batch{"--train.micro_batch=4", "--train.deterministic=false"};
  const auto with = [&](std::vector<std::string> flags, const std::string& flag) {
    flags.push_back(flag);
    return flags;
  };
  ASSERT_EQ(test::run(command("batch", 2, with(with(batch, "--train.global_batch=24"), "--train.steps=1"))).status, 0);
  const Finished resumed = test::run(command("batch", 4, with(batch, "--train.global_batch=0")));
  EXPECT_EQ(resumed.status, 0) << resumed.output;
  EXPECT_THAT(resumed.output, HasSubstr("does not fit the checkpoint's 24 sequences a step on 4 ranks: this launch takes 3"));
}

TEST_F(LostRanks, TheStartSaysWhereLostRanksCostSteps) {
  const auto started = [&](std::vector<std::string> flags) {
    flags.emplace_back("--train.steps=1");
    const Finished run = test::run(command("started", 2, flags));
    EXPECT_EQ(run.status, 0) << run.output;
    fs::remove_all(run_folder("started"));
    return run.output;
  };
  const std::string cost = "a lost rank costs the steps since the last checkpoint: ";
  EXPECT_THAT(started({}), HasSubstr(cost + "there is only one copy of each shard"));
  EXPECT_THAT(started({"--fsdp.strategy=no_shard", "--checkpoint.emergency=false"}), HasSubstr(cost + "checkpoint.emergency = false"));
}

}  // namespace
}  // namespace mica::test
