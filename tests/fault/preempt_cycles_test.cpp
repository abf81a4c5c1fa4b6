// SPDX-License-Identifier: Apache-2.0
// One run that is preempted again and again: each launch goes on after the step that the last one saved, and in the end the run
// holds the bits of one that was never disturbed.
//   MICA_CYCLES=<n>  preemptions of each kind (5)

#include <csignal>
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fault/support/training.hpp"
#include "support/environment_number.hpp"
#include "support/temporary_folder.hpp"

namespace mica::test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::SizeIs;

int num_cycles() { return static_cast<int>(environment_number("MICA_CYCLES", 5)); }

class PreemptCycles : public ::testing::Test {
 protected:
  PreemptCycles() {
    write_tokens(folder_ / "tokens.bin", 20'000);
    write_text(folder_ / "run.cfg",
               "[model]\ntype = gpt2\nlayers = 2\nheads = 2\nwidth = 32\nvocab_size = 256\ncontext = 16\ndropout = 0.1\n"
               "[data]\ntrain = " +
                   (folder_ / "tokens.bin") +
                   "\n"
                   "[train]\nmicro_batch = 1\nglobal_batch = 4\nseq_len = 16\nlog_interval = 1\n"
                   "[optim]\nschedule = constant\n");
  }
  [[nodiscard]] std::string run_folder(const std::string& name) const { return folder_ / name; }
  [[nodiscard]] std::vector<std::string> command(const std::string& name, int num_ranks, std::int64_t steps,
                                                 std::vector<std::string> flags) const {
    flags.push_back("--run.dir=" + run_folder(name));
    flags.push_back("--train.steps=" + std::to_string(steps));
    return training(num_ranks, folder_ / "run.cfg", flags);
  }
  [[nodiscard]] std::int64_t newest(const std::string& name) const {
    const std::vector<std::string> all = checkpoints_of(run_folder(name));
    return all.empty() ? 0 : std::stoll(all.back().substr(5));
  }
  /// A run of the same steps in one launch has the same rows and bits.
  void expect_undisturbed(int num_ranks, const std::vector<std::string>& flags) const {
    const std::int64_t steps = newest("cycles") + 1;
    for (const std::string name : {"cycles", "whole"}) {
      const Finished ended = test::run(command(name, num_ranks, steps, flags), 600);
      ASSERT_EQ(ended.status, 0) << ended.output;
    }
    EXPECT_EQ(step_lines(run_folder("cycles")), step_lines(run_folder("whole")));
    const Finished compared = test::run({program("mica-inspect"), "diff", run_folder("cycles"), run_folder("whole")});
    EXPECT_EQ(compared.status, 0) << compared.output;
  }

  TemporaryFolder folder_;
};

TEST_F(PreemptCycles, EachGoesOnWhereTheLastOneSavedAndTheBitsAreAnUndisturbedRuns) {
  for (const int num_ranks : {1, 2, 4}) {
    fs::remove_all(run_folder("cycles"));
    fs::remove_all(run_folder("whole"));
    for (int cycle = 0; cycle < num_cycles(); ++cycle) {
      SCOPED_TRACE("cycle " + std::to_string(cycle) + " on " + std::to_string(num_ranks));
      const std::int64_t saved = newest("cycles");
      Child child(command("cycles", num_ranks, 100'000'000, {std::string("--checkpoint.async=") + (cycle % 2 == 0 ? "false" : "true")}));
      const std::vector<pid_t> ranks = child.ranks(num_ranks);
      ASSERT_THAT(ranks, SizeIs(static_cast<std::size_t>(num_ranks)));
      ASSERT_TRUE(child.wait_for("  loss ")) << child.wait(1).output;
      const int signal = cycle % 3 == 0 ? SIGUSR1 : SIGTERM;
      if (cycle % 2 == 0) {
        for (const pid_t rank : ranks) ::kill(rank, signal);  // as Slurm does
      } else {
        ::kill(ranks[static_cast<std::size_t>(cycle % num_ranks)], signal);
      }
      const Finished stopped = child.wait();
      ASSERT_EQ(stopped.status, 75) << stopped.output;
      EXPECT_EQ(first_progress_step(stopped.output), saved + 1);
      EXPECT_GT(newest("cycles"), saved);
      EXPECT_EQ(step_lines(run_folder("cycles")).back().step, newest("cycles"));
    }
    expect_undisturbed(num_ranks, {});
  }
}

// Every third time the job is lost with all that it has not saved, and goes on with another number of ranks.
TEST_F(PreemptCycles, LostNodesAndOtherNumbersOfRanksToo) {
  const std::vector<std::string> flags{"--train.deterministic=true", "--checkpoint.interval=5"};
  const std::vector<int> worlds{4, 2, 1};
  for (int cycle = 0; cycle < num_cycles(); ++cycle) {
    const int num_ranks = worlds[static_cast<std::size_t>(cycle / 3) % worlds.size()];
    SCOPED_TRACE("cycle " + std::to_string(cycle) + " on " + std::to_string(num_ranks));
    const std::int64_t saved = newest("cycles");
    Child child(command("cycles", num_ranks, 100'000'000, flags));
    const std::vector<pid_t> ranks = child.ranks(num_ranks);
    ASSERT_THAT(ranks, SizeIs(static_cast<std::size_t>(num_ranks)));
    ASSERT_TRUE(child.wait_for("  loss ")) << child.wait(1).output;
    const bool is_lost = cycle % 3 == 2;
    for (const pid_t rank : ranks) ::kill(rank, is_lost ? SIGKILL : SIGTERM);
    const Finished ended = child.wait();
    EXPECT_TRUE(have_ended(ranks, 20));
    if (is_lost) {
      EXPECT_NE(ended.status, 0);
    } else {
      ASSERT_EQ(ended.status, 75) << ended.output;
      EXPECT_GT(newest("cycles"), saved);
    }
    EXPECT_EQ(first_progress_step(ended.output), saved + 1);
  }
  expect_undisturbed(2, flags);
}

}  // namespace
}  // namespace mica::test
