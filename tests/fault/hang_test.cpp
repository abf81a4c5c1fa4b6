// SPDX-License-Identifier: Apache-2.0
// Ranks are stopped, killed, leave out a collective, have another order of them: the job ends with status 3, and a report names the
// rank and what the others wait for within mesh.timeout and 5 s. It can be read again afterwards, and nothing is left in /dev/shm.
//   MICA_HANGS=<n>  times of each (1)

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <optional>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mica/core/process_stat.hpp"

#include "fault/support/training.hpp"
#include "support/environment_number.hpp"
#include "support/temporary_folder.hpp"

namespace mica::test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using Clock = std::chrono::steady_clock;

constexpr double kTimeout = 2;  // mesh.timeout, in seconds

std::int64_t num_hangs() { return std::max<std::int64_t>(1, environment_number("MICA_HANGS", 1)); }

/// Files of these processes in /dev/shm.
int num_left_in_memory(const std::vector<pid_t>& pids) {
  int num = 0;
  for (const fs::directory_entry& file : fs::directory_iterator("/dev/shm")) {
    for (const pid_t pid : pids) num += file.path().filename().string().starts_with("mica-" + std::to_string(pid) + "-");
  }
  return num;
}

class Hang : public ::testing::Test {
 protected:
  static constexpr int kRanks = 3;

  [[nodiscard]] std::string run_folder() const { return folder_ / "run"; }

  /// mica-train, without an end of its own.
  [[nodiscard]] std::vector<std::string> trains(const std::vector<std::string>& flags = {}) const {
    write_tokens(folder_ / "tokens.bin", 20'000);
    write_text(folder_ / "run.cfg",
               "[model]\ntype = gpt2\nlayers = 2\nheads = 2\nwidth = 32\nvocab_size = 256\ncontext = 32\n"
               "[data]\ntrain = " +
                   (folder_ / "tokens.bin") +
                   "\n"
                   "[train]\nsteps = 1000000\nmicro_batch = 2\nseq_len = 32\nlog_interval = 5\n"
                   "[checkpoint]\ninterval = 0\nkeep = 0\n[mesh]\ntimeout = 2\n"
                   "[run]\ndir = " +
                   run_folder() + "\n");
    return training(kRanks, folder_ / "run.cfg", flags);
  }
  /// A user's own loop (support/hanging_ranks.cpp).
  [[nodiscard]] std::vector<std::string> loops(const std::string& way, const std::string& folder) const {
    return under_mpirun(kRanks, {(fs::canonical("/proc/self/exe").parent_path() / "fault_hanging_ranks").string(), way, folder, "2000"});
  }

  /// The job has ended with status 3; what was printed and what mica-inspect prints fit, and so does the time.
  void expect_named(const Finished& run, const std::vector<pid_t>& ranks, const ::testing::Matcher<const std::string&>& named) const {
    EXPECT_FALSE(run.is_timed_out) << run.output;
    EXPECT_EQ(run.status, 3) << run.output;
    EXPECT_THAT(run.output, named);
    EXPECT_EQ(run.error_lines().size(), 1u) << run.output;
    EXPECT_THAT(read_text(run_folder() + "/log.txt"), named);
    expect_inspected(named);
    EXPECT_TRUE(have_ended(ranks, 20));
    EXPECT_EQ(num_left_in_memory(ranks), 0);
  }
  void expect_inspected(const ::testing::Matcher<const std::string&>& named) const {
    const Finished inspected = test::run({program("mica-inspect"), "hang", run_folder()});
    EXPECT_EQ(inspected.status, 0) << inspected.output;
    EXPECT_THAT(inspected.output, AllOf(named, HasSubstr("where the ranks stand:"), Not(HasSubstr("left no record"))));
    EXPECT_LT(std::ranges::count(inspected.output, '\n'), 24);
  }

  TemporaryFolder folder_;
};

TEST_F(Hang, AStoppedRankIsNamed) {
  for (int i = 0; i < num_hangs(); ++i) {
    for (const std::string streams : {"inline", "threaded"}) {
      SCOPED_TRACE(streams);
      fs::remove_all(run_folder());
      Child child(trains({"--mesh.streams=" + streams}));
      const std::vector<pid_t> ranks = child.ranks(kRanks);
      ASSERT_EQ(ranks.size(), static_cast<std::size_t>(kRanks));
      ASSERT_TRUE(child.wait_for("  loss ")) << child.wait(1).output;
      ::kill(ranks[1], SIGSTOP);
      const auto begin = Clock::now();
      EXPECT_TRUE(child.wait_for(") is stopped: its process " + std::to_string(ranks[1]))) << child.wait(1).output;
      EXPECT_LT(std::chrono::duration<double>(Clock::now() - begin).count(), kTimeout + 5);
      expect_named(child.wait(), ranks,
                   ContainsRegex("rank 1 \\([^)]*\\) is stopped: its process " + std::to_string(ranks[1]) + " is held by SIGSTOP"));
    }
  }
}

// mpirun ends the job with the status of the signal. Here it leaves the others more time than by default.
TEST_F(Hang, AKilledRankIsNamed) {
  for (int i = 0; i < num_hangs(); ++i) {
    fs::remove_all(run_folder());
    Child child(trains(), {{"OMPI_MCA_odls_base_sigkill_timeout", "20"}});
    const std::vector<pid_t> ranks = child.ranks(kRanks);
    ASSERT_EQ(ranks.size(), static_cast<std::size_t>(kRanks));
    ASSERT_TRUE(child.wait_for("  loss ")) << child.wait(1).output;
    ::kill(ranks[0], SIGKILL);
    const std::string named = "is dead: its process " + std::to_string(ranks[0]) + " is gone", log = run_folder() + "/log.txt";
    const auto deadline = Clock::now() + std::chrono::duration<double>(kTimeout + 5);
    while (Clock::now() < deadline && read_text(log).find(named) == std::string::npos) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    EXPECT_THAT(read_text(log), HasSubstr(named));
    EXPECT_TRUE(have_ended({ranks[1], ranks[2]}, 20));
    expect_inspected(ContainsRegex("rank 0 \\([^)]*\\) " + named));
    EXPECT_EQ(num_left_in_memory(ranks), 0);
    (void)child.wait(0);  // mpirun would go on waiting
  }
}

TEST_F(Hang, AUsersOwnLoopIsLookedAfterToo) {
  const std::vector<std::pair<std::string, std::string>> ways{
      {"skips", "rank 1 \\([^)]*\\) has skipped all-gather #42 of block.1 \\(group 'shard'\\)"},
      {"order", "rank 1 \\([^)]*\\) has another order in group 'shard': barrier #42 of block.2 there, all-gather #42 of block.1 on"},
      {"computes", "rank 1 \\([^)]*\\) has not entered all-gather #45 of block.0; ranks 0,2 .*have waited for it for [1-9][0-9]* s"},
      {"host", "rank 1 \\([^)]*\\) has not entered all-gather #45 of block.0"},
      {"stays", "rank 1 \\([^)]*\\) has not entered barrier #[0-9]+ outside the steps; ranks 0,2 .*have waited for it"},
  };
  for (int i = 0; i < num_hangs(); ++i) {
    for (const auto& [way, named] : ways) {
      SCOPED_TRACE(way);
      fs::remove_all(run_folder());
      fs::create_directory(run_folder());
      Child child(loops(way, run_folder()));
      const std::vector<pid_t> ranks = child.ranks(kRanks);
      ASSERT_EQ(ranks.size(), static_cast<std::size_t>(kRanks));
      ASSERT_TRUE(child.wait_for("goes wrong")) << child.wait(1).output;
      const auto begin = Clock::now();
      EXPECT_TRUE(child.wait_for("where the ranks stand:")) << child.wait(1).output;
      EXPECT_LT(std::chrono::duration<double>(Clock::now() - begin).count(), kTimeout + 5);
      expect_named(child.wait(), ranks, ContainsRegex(named));
    }
  }
}

// The others wait for the rank that reports, as long as its file system takes.
TEST_F(Hang, ASlowFileSystemDelaysTheReport) {
  const std::string library = fs::canonical("/proc/self/exe").parent_path() / "libfault_slow_fsync.so";
  Child child(trains(), {{"LD_PRELOAD", library}, {"MICA_SLOW_FSYNC", "/rank-00001.json"}});
  const std::vector<pid_t> ranks = child.ranks(kRanks);
  ASSERT_EQ(ranks.size(), static_cast<std::size_t>(kRanks));
  ASSERT_TRUE(child.wait_for("  loss ")) << child.wait(1).output;
  ::kill(ranks[1], SIGSTOP);
  const auto begin = Clock::now();
  const Finished run = child.wait();
  EXPECT_GE(std::chrono::duration<double>(Clock::now() - begin).count(), 14) << "no fsync was held up";
  expect_named(run, ranks, HasSubstr(") is stopped: its process " + std::to_string(ranks[1]) + " is held by SIGSTOP"));
}

TEST_F(Hang, WithoutAFolderTheReportIsPrinted) {
  const Finished run = test::run(loops("computes", "-"));
  EXPECT_EQ(run.status, 3) << run.output;
  EXPECT_THAT(run.output, ContainsRegex("mica: error: .*rank 1 \\([^)]*\\) has not entered all-gather #45 of block.0; ranks 0,2 "));
  EXPECT_FALSE(fs::exists(run_folder()));
}

// Just below the limit; and a rank that is held while nobody waits for long.
TEST_F(Hang, WhoIsOnlyLateIsLeftInPeace) {
  fs::create_directory(run_folder());
  std::vector<std::string> late = loops("waits_long", run_folder());
  late.back() = "6000";
  const Finished run = test::run(late);
  EXPECT_EQ(run.status, 0) << run.output;
  EXPECT_FALSE(fs::exists(run_folder() + "/hang"));
}

// The others wait for longer than the timeout in all, but not in one collective.
TEST_F(Hang, WhoIsOnlyLateAgainAndAgainIsLeftInPeace) {
  fs::create_directory(run_folder());
  std::vector<std::string> late = loops("waits_often", run_folder());
  late.back() = "4000";
  const Finished run = test::run(late);
  EXPECT_EQ(run.status, 0) << run.output;
  EXPECT_FALSE(fs::exists(run_folder() + "/hang"));
}

// As `scontrol suspend` does: the time counts for nobody.
TEST_F(Hang, AJobThatIsSuspendedGoesOn) {
  Child child(trains({"--train.steps=400"}));
  const std::vector<pid_t> ranks = child.ranks(kRanks);
  ASSERT_EQ(ranks.size(), static_cast<std::size_t>(kRanks));
  ASSERT_TRUE(child.wait_for("  loss ")) << child.wait(1).output;
  for (const pid_t rank : ranks) {  // one after the other, so that the last ones wait for the first in a collective
    ::kill(rank, SIGSTOP);
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
  }
  std::this_thread::sleep_for(std::chrono::duration<double>(kTimeout + 1));
  for (const pid_t rank : ranks) {
    const std::optional<ProcessStat> stat = process_stat(rank);
    ASSERT_TRUE(stat && stat->state == 'T') << "rank's process " << rank;
  }
  for (const pid_t rank : ranks) ::kill(rank, SIGCONT);
  const Finished run = child.wait(120);
  EXPECT_EQ(run.status, 0) << run.output;
  EXPECT_FALSE(fs::exists(run_folder() + "/hang"));
}

TEST_F(Hang, ARunThatNeverHungHasNothingToTell) {
  fs::create_directory(run_folder());
  const Finished inspected = test::run({program("mica-inspect"), "hang", run_folder()});
  EXPECT_EQ(inspected.status, 2);
  EXPECT_THAT(inspected.output, HasSubstr("holds no records of a hang"));
}

}  // namespace
}  // namespace mica::test
