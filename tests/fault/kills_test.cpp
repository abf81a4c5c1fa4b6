// SPDX-License-Identifier: Apache-2.0
// kill -9 at random moments while checkpoints are written, again and again: the newest complete checkpoint always verifies
// and is gone on from, and in the end the run holds the bits of one that was never disturbed.
//   MICA_KILLS=<n>  kills (40); MICA_KILLS_SEED=<n>  of the moments and victims

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <thread>

#include <gtest/gtest.h>

#include "fault/support/training.hpp"
#include "support/environment_number.hpp"
#include "support/temporary_folder.hpp"

namespace mica::test {
namespace {

namespace fs = std::filesystem;

/// The step in the newest complete checkpoint's name; 0 for none.
std::int64_t newest_step(const std::string& run) {
  const std::vector<std::string> all = checkpoints_of(run);
  return all.empty() ? 0 : std::atoll(all.back().substr(5).c_str());
}

/// Folders of saves that are not complete; not of an old checkpoint that is being deleted.
std::int64_t num_half_saves(const std::string& run) {
  std::int64_t num = 0;
  std::error_code none;
  for (fs::directory_iterator it(run + "/checkpoints", none); !none && it != fs::directory_iterator(); it.increment(none)) {
    const std::string name = it->path().filename().string();
    num += name.ends_with(".tmp") && !name.ends_with(".old.tmp") ? 1 : 0;
  }
  return num;
}

/// Stops the ranks while a save is under way: whoever sees its folder may be too late otherwise, on a busy machine.
bool stop_inside_a_save(const std::string& run, const std::vector<pid_t>& ranks) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (std::chrono::steady_clock::now() < deadline) {
    if (num_half_saves(run) == 0) continue;
    for (const pid_t rank : ranks) ::kill(rank, SIGSTOP);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // what a system call has begun
    if (num_half_saves(run) > 0) return true;
    for (const pid_t rank : ranks) ::kill(rank, SIGCONT);
  }
  return false;
}

class Kills : public ::testing::TestWithParam<bool> {};

TEST_P(Kills, NoCompleteCheckpointIsEverWrong) {
  constexpr int kRanks = 2;
  const bool in_background = GetParam();
  const std::int64_t num_kills = environment_number("MICA_KILLS", 40) / 2;  // half of them each way
  std::mt19937 random(static_cast<std::uint32_t>(environment_number("MICA_KILLS_SEED", 1)));
  const TemporaryFolder folder;
  write_tokens(folder / "tokens.bin", 20'000);
  write_text(folder / "run.cfg",
             "[model]\ntype = gpt2\nlayers = 2\nheads = 2\nwidth = 64\nvocab_size = 256\ncontext = 16\n"
             "[data]\ntrain = " +
                 (folder / "tokens.bin") +
                 "\n"
                 "[train]\nmicro_batch = 1\nglobal_batch = 2\nseq_len = 16\nlog_interval = 50\n"
                 "[optim]\nschedule = constant\nwarmup_steps = 0\n");
  const std::string run = folder / "run";
  const auto command = [&](const std::string& where, std::int64_t steps, const std::string& interval) {
    return training(kRanks, folder / "run.cfg",
                    {"--run.dir=" + where, "--train.steps=" + std::to_string(steps), "--checkpoint.interval=" + interval,
                     std::string("--checkpoint.async=") + (in_background ? "true" : "false")});
  };
  std::int64_t num_in_a_save = 0;
  for (std::int64_t kill = 0; kill < num_kills; ++kill) {
    const std::int64_t before = newest_step(run);
    fs::remove(run + "/starts.json");  // early kills in a row are starts without progress, which Stop.* look at
    // Every fourth time a rank that survives goes on for as long as Open MPI lets it by default.
    Child child(command(run, 1'000'000, "1"), {{"OMPI_MCA_odls_base_sigkill_timeout", kill % 4 == 0 ? "1" : "0"}});
    const std::vector<pid_t> ranks = child.ranks(kRanks);
    ASSERT_EQ(ranks.size(), static_cast<std::size_t>(kRanks));
    // One of five: inside a save. Of the others one of four: while it starts, resumes and saves for the first time; else
    // around later saves.
    const bool is_early = kill % 5 != 1 && std::uniform_int_distribution<int>(0, 3)(random) == 0;
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!is_early && newest_step(run) <= before) {
      ASSERT_TRUE(child.is_running() && std::chrono::steady_clock::now() < deadline) << child.wait(0).output;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    const bool is_aimed = kill % 5 == 1;
    if (is_aimed) {
      ASSERT_TRUE(stop_inside_a_save(run, ranks)) << "no save was seen";
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(std::uniform_int_distribution<int>(0, is_early ? 600'000 : 40'000)(random)));
    }
    const int victim = is_aimed ? -1 : std::uniform_int_distribution<int>(-1, kRanks - 1)(random);  // -1: all at once
    for (int r = 0; r < kRanks; ++r) {
      if (victim < 0 || victim == r) ::kill(ranks[static_cast<std::size_t>(r)], SIGKILL);
    }
    EXPECT_TRUE(have_ended(ranks, 20)) << "kill " << kill << (is_early ? ", early" : "") << ", of rank " << victim << " (-1: all)\n"
                                       << child.wait(0).output;
    // Open MPI 4.1's mpirun itself may wait for ever when a rank died while it was connecting to it, and says so.
    const Finished killed = child.wait(20);
    EXPECT_TRUE(!killed.is_timed_out || (is_early && killed.output.find("PMIX ERROR: UNREACHABLE") != std::string::npos))
        << "kill " << kill << "\n"
        << killed.output;
    EXPECT_NE(killed.status, 0) << "kill " << kill;
    if (!fs::exists(run + "/checkpoints")) continue;
    num_in_a_save += num_half_saves(run);
    ASSERT_GE(newest_step(run), before + (is_early ? 0 : 1)) << "kill " << kill;
    for (const std::string& name : checkpoints_of(run)) {
      const Finished verified = test::run({program("mica-inspect"), "verify", run + "/checkpoints/" + name});
      ASSERT_EQ(verified.status, 0) << "kill " << kill << "\n" << verified.output;
    }
  }
  EXPECT_GT(num_in_a_save, 0) << "those that were aimed at one";
  // What went through all these kills, and what went through none.
  const std::int64_t steps = newest_step(run) + 1;
  const Finished last = test::run(command(run, steps, "1"));
  ASSERT_EQ(last.status, 0) << last.output;
  const Finished undisturbed = test::run(command(folder / "undisturbed", steps, "0"), 300);
  ASSERT_EQ(undisturbed.status, 0) << undisturbed.output;
  const Finished diff = test::run({program("mica-inspect"), "diff", run, folder / "undisturbed"});
  EXPECT_EQ(diff.status, 0) << diff.output;
  std::printf("%lld kills, %lld left a save half done; %lld steps, equal bits\n", static_cast<long long>(num_kills),
              static_cast<long long>(num_in_a_save), static_cast<long long>(steps));
}

INSTANTIATE_TEST_SUITE_P(Saving, Kills, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "InTheBackground" : "InTheForeground"; });

}  // namespace
}  // namespace mica::test
