// SPDX-License-Identifier: Apache-2.0
// One rank fails, or the job is told to stop: all ranks end, soon, and one message says why.

#include <csignal>
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fault/support/training.hpp"
#include "support/temporary_folder.hpp"

namespace mica::test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

std::size_t occurrences(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) ++count;
  return count;
}

/// Within seconds, or a minute where others use the machine: what hangs does so for ever.
constexpr double kSeconds = 60;

class OneRankFails : public ::testing::Test {
 protected:
  OneRankFails() {
    write_tokens(folder_ / "tokens.bin", 20'000);
    write_text(folder_ / "run.cfg",
               "[model]\ntype = gpt2\nlayers = 2\nheads = 2\nwidth = 32\nvocab_size = 256\ncontext = 32\n"
               "[data]\ntrain = " +
                   (folder_ / "tokens.bin") +
                   "\n"
                   "[train]\nsteps = 1000000\nmicro_batch = 2\nseq_len = 32\nlog_interval = 5\n"
                   "[checkpoint]\ninterval = 0\nkeep = 0\n"
                   "[run]\ndir = " +
                   run_folder() + "\n");
  }
  [[nodiscard]] std::string run_folder() const { return folder_ / "run"; }
  [[nodiscard]] std::vector<std::string> command(int num_ranks, const std::vector<std::string>& flags = {}) const {
    return training(num_ranks, folder_ / "run.cfg", flags);
  }
  /// More tokens than are checked at the start, mostly a hole in the file.
  [[nodiscard]] std::string large_file_with_bad_token(std::int64_t position) const {
    constexpr std::int64_t kTokens = 33'000'000;
    const std::string path = folder_ / "large.bin";
    write_tokens(path, 1000);
    fs::resize_file(path, 2 * kTokens);
    overwrite_token(path, position, 300);
    return path;
  }

  TemporaryFolder folder_;
};

TEST_F(OneRankFails, KilledRankEndsTheJob) {
  constexpr int kRanks = 4;
  for (const int victim : {0, 2}) {
    for (const std::string streams : {"inline", "threaded"}) {
      SCOPED_TRACE(streams + ", rank " + std::to_string(victim));
      fs::remove_all(run_folder());
      Child child(command(kRanks, {"--mesh.streams=" + streams}));
      const std::vector<pid_t> ranks = child.ranks(kRanks);
      ASSERT_EQ(ranks.size(), 4u);
      ASSERT_TRUE(child.wait_for("  loss ")) << child.wait(1).output;
      const auto begin = Clock::now();
      ::kill(ranks[static_cast<std::size_t>(victim)], SIGKILL);
      const Finished seen = child.wait(kSeconds);
      EXPECT_LT(seconds_since(begin), kSeconds) << seen.output;
      EXPECT_NE(seen.status, 0);
      // The launcher names a rank lost to a signal, and so do the others, if it leaves them the time.
      EXPECT_EQ(occurrences(seen.output, "process rank " + std::to_string(victim) + " "), 1u) << seen.output;
      for (const std::string& line : seen.error_lines()) EXPECT_THAT(line, HasSubstr("rank " + std::to_string(victim) + " "));
      EXPECT_TRUE(have_ended(ranks, 20));
    }
  }
}

TEST_F(OneRankFails, ErrorOfOneRankInsideAStep) {
  // In order, so that rank 1 alone reads the bad token: sequences 4 s + {2, 3} of step s + 1 are its. Rank 0 is in a collective of that
  // step meanwhile.
  constexpr std::int64_t kPosition = (4 * 20 + 2) * 32 + 7;
  const std::string path = large_file_with_bad_token(kPosition);
  for (const std::string streams : {"inline", "threaded"}) {
    SCOPED_TRACE(streams);
    fs::remove_all(run_folder());
    Child child(command(2, {"--data.train=" + path, "--data.order=sequential", "--mesh.streams=" + streams}));
    const std::vector<pid_t> ranks = child.ranks(2);
    (void)child.wait_for("mica: error:");
    const auto begin = Clock::now();
    const Finished seen = child.wait(kSeconds);
    EXPECT_LT(seconds_since(begin), kSeconds) << seen.output;
    EXPECT_EQ(seen.status, 2) << seen.output;
    const std::vector<std::string> lines = seen.error_lines();
    ASSERT_EQ(lines.size(), 1u) << seen.output;
    EXPECT_THAT(lines[0], HasSubstr("mica: error: rank 1: " + path));
    EXPECT_THAT(lines[0], HasSubstr("token " + std::to_string(kPosition) + " has id 300"));
    EXPECT_GE(step_lines(run_folder()).size(), 15u) << "it came inside a step, after good ones";
    EXPECT_TRUE(have_ended(ranks, 20));
  }
}

// A batch is read one step ahead, and ranks whose steps take long ask each other after each.
TEST_F(OneRankFails, ABatchThatCannotBeReadLosesNoStep) {
  const std::string path = large_file_with_bad_token((2 * 2000 + 1003) * 32 + 7);  // of a sequence of step 3
  const std::vector<std::string> flags{"--data.train=" + path, "--data.order=sequential", "--train.global_batch=2000",
                                       "--train.log_interval=1"};
  for (int launch = 1; launch <= 2; ++launch) {  // the next one has the same batch to read first
    const Finished seen = test::run(command(2, flags));
    EXPECT_EQ(seen.status, 2) << seen.output;
    const std::vector<std::string> lines = seen.error_lines();
    ASSERT_EQ(lines.size(), 1u) << seen.output;
    EXPECT_THAT(lines[0], HasSubstr(path + ": token"));
    const std::vector<std::string> saved = checkpoints_of(run_folder());
    ASSERT_EQ(saved.size(), 1u) << seen.output;
    EXPECT_EQ(std::stoll(saved[0].substr(5)), 2) << seen.output;
    EXPECT_EQ(step_lines(run_folder()).size(), 2u);
    if (launch == 1) {
      EXPECT_THAT(seen.output, HasSubstr(" cannot read its next batch"));
    }
  }
}

// A read of a mapped page that is gone is a signal by nature.
TEST_F(OneRankFails, ATokenFileThatIsCutIsNamedAndLosesNoLongStep) {
  const std::string path = folder_ / "cut.bin";
  for (const bool is_long : {false, true}) {
    fs::remove_all(run_folder());
    write_tokens(path, 200'000);
    Child child(
        command(2, {"--data.train=" + path, "--train.log_interval=1", is_long ? "--train.global_batch=2000" : "--train.seq_len=31"}));
    const std::vector<pid_t> ranks = child.ranks(2);
    ASSERT_TRUE(child.wait_for("  loss ")) << child.wait(1).output;
    fs::resize_file(path, 4096);
    const Finished seen = child.wait(kSeconds);
    EXPECT_EQ(seen.status, 3) << seen.output;
    const std::vector<std::string> lines = seen.error_lines();
    ASSERT_EQ(lines.size(), 1u) << seen.output;
    EXPECT_THAT(lines[0], HasSubstr(path + ": the file shrank from 400000 to 4096 bytes while in use"));
    EXPECT_TRUE(have_ended(ranks, 20));
    if (!is_long) continue;
    const std::vector<std::string> saved = checkpoints_of(run_folder());
    ASSERT_EQ(saved.size(), 1u) << seen.output;
    EXPECT_EQ(std::stoll(saved[0].substr(5)), step_lines(run_folder()).back().step);
  }
}

TEST_F(OneRankFails, AnEvaluationThatFailsLosesNoStep) {
  // Batches of two sequences go to ranks in turns, so rank 1 reads sequences 4 r + {2, 3} in round r.
  const std::string path = large_file_with_bad_token((4 * 3 + 2) * 32 + 7);
  const std::vector<std::string> flags{"--data.val=" + path, "--train.eval_interval=20", "--train.eval_batches=4", "--train.steps=20",
                                       "--checkpoint.optimizer=false"};
  const Finished seen = test::run(command(2, flags));
  EXPECT_EQ(seen.status, 2) << seen.output;
  const std::vector<std::string> lines = seen.error_lines();
  ASSERT_EQ(lines.size(), 1u) << seen.output;
  EXPECT_THAT(lines[0], HasSubstr("mica: error: rank 1: " + path));
  const std::vector<std::string> saved = checkpoints_of(run_folder());
  ASSERT_EQ(saved.size(), 1u) << seen.output;
  EXPECT_EQ(std::stoll(saved[0].substr(5)), 20);
  // With the optimizer's state, so that the run goes on.
  const Finished resumed = test::run(command(2, {"--data.val=", "--train.steps=25"}));
  EXPECT_EQ(resumed.status, 0) << resumed.output;
  EXPECT_EQ(step_lines(run_folder()).size(), 25u);
}

TEST_F(OneRankFails, SignalSavesAndStops) {
  // As a batch system does it: SIGUSR1 to the launcher, which passes it on; SIGTERM to one rank.
  for (const bool to_launcher : {true, false}) {
    fs::remove_all(run_folder());
    Child child(command(2));
    const std::vector<pid_t> ranks = child.ranks(2);
    ASSERT_EQ(ranks.size(), 2u);
    ASSERT_TRUE(child.wait_for("  loss ")) << child.wait(1).output;
    ASSERT_EQ(to_launcher ? ::kill(child.pid(), SIGUSR1) : ::kill(ranks[1], SIGTERM), 0);
    const Finished seen = child.wait(kSeconds);
    EXPECT_EQ(seen.status, 75) << seen.output;
    EXPECT_TRUE(seen.error_lines().empty()) << seen.output;
    EXPECT_THAT(seen.output, HasSubstr("start the same command again"));
    const std::vector<std::string> saved = checkpoints_of(run_folder());
    ASSERT_EQ(saved.size(), 1u) << seen.output;
    const std::int64_t step = std::stoll(saved[0].substr(5));
    ASSERT_FALSE(step_lines(run_folder()).empty());
    EXPECT_EQ(step_lines(run_folder()).back().step, step);
    // And it goes on.
    const Finished resumed = test::run(command(2, {"--train.steps=" + std::to_string(step + 5)}));
    EXPECT_EQ(resumed.status, 0) << resumed.output;
    EXPECT_EQ(step_lines(run_folder()).size(), static_cast<std::size_t>(step + 5));
  }
}

TEST_F(OneRankFails, TerminatedLauncherSavesFirst) {
  // mpirun answers SIGTERM itself: it passes it on after a second, grants its ranks a grace time, and ends with a
  // status of its own. In all that time it reads none of their output: a pipe full of progress lines would block rank 0.
  Child child(command(2, {"--train.log_interval=200"}), {{"OMPI_MCA_odls_base_sigkill_timeout", "4"}});
  ASSERT_TRUE(child.wait_for("  loss ")) << child.wait(1).output;
  ASSERT_EQ(::kill(child.pid(), SIGTERM), 0);
  const Finished seen = child.wait(30);
  EXPECT_FALSE(seen.is_timed_out);
  EXPECT_NE(seen.status, 0);
  const std::vector<std::string> saved = checkpoints_of(run_folder());
  ASSERT_EQ(saved.size(), 1u) << seen.output;
  EXPECT_EQ(step_lines(run_folder()).back().step, std::stoll(saved[0].substr(5)));
}

}  // namespace
}  // namespace mica::test
