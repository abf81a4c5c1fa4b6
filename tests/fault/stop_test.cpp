// SPDX-License-Identifier: Apache-2.0
// A run is told to stop by a signal, at any moment of its life: it saves, ends with status 75 and goes on after the
// step that it saved. A second signal ends it at once. Starts that get nowhere end by themselves.

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fault/support/endless_run.hpp"

namespace mica::test {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using Clock = std::chrono::steady_clock;

/// Waits until a signal is among a process's signals of a kind ("SigBlk": its main thread leaves it to another one, "ShdPnd": it was sent
/// and not delivered), or is no longer. @returns false after 30 s
bool wait_for_signal(pid_t pid, const std::string& kind, int signal, bool is_in = true) {
  const auto begin = Clock::now();
  while (Clock::now() - begin < 30s) {
    std::ifstream status("/proc/" + std::to_string(pid) + "/status");
    for (std::string line; std::getline(status, line);) {
      if (!line.starts_with(kind + ":")) continue;
      if (((std::stoull(line.substr(kind.size() + 1), nullptr, 16) >> (signal - 1) & 1) != 0) == is_in) return true;
    }
    std::this_thread::sleep_for(2ms);
  }
  return false;
}

class Stop : public EndlessRun {
 protected:
  [[nodiscard]] std::string metrics() const { return run_folder() + "/metrics.jsonl"; }
};

TEST_F(Stop, ASignalToAnyRankSavesOnAll) {
  struct Case {
    int num_ranks, rank, signal;
    const char* name;
  };
  for (const Case& each : {Case{1, 0, SIGINT, "SIGINT"}, Case{2, 1, SIGUSR1, "SIGUSR1"}, Case{4, 3, SIGTERM, "SIGTERM"},
                           Case{4, 0, SIGUSR2, "SIGUSR2"}, Case{4, 2, SIGINT, "SIGINT"}, Case{1, 0, SIGHUP, "SIGHUP"}}) {
    SCOPED_TRACE(std::string(each.name) + " to rank " + std::to_string(each.rank) + " of " + std::to_string(each.num_ranks));
    fs::remove_all(run_folder());
    Child child(command(each.num_ranks));
    const std::vector<pid_t> ranks = child.ranks(each.num_ranks);
    ASSERT_THAT(ranks, SizeIs(static_cast<std::size_t>(each.num_ranks)));
    ASSERT_TRUE(child.wait_for("  loss ")) << child.wait(1).output;
    ASSERT_EQ(::kill(ranks[static_cast<std::size_t>(each.rank)], each.signal), 0);
    const Finished stopped = child.wait();
    EXPECT_THAT(stopped.output, HasSubstr(std::string(each.name) + " on rank " + std::to_string(each.rank)));
    expect_saved_and_goes_on(stopped, each.num_ranks);
  }
}

// A run that keeps only models while it trains. With interval=1 the step at which it stops may have been saved without its optimizer.
TEST_F(Stop, CanBeResumedWithoutOptimizersInOtherCheckpoints) {
  for (const char* interval : {"--checkpoint.interval=0", "--checkpoint.interval=1"}) {
    SCOPED_TRACE(interval);
    fs::remove_all(run_folder());
    const std::vector<std::string> flags{"--checkpoint.optimizer=false", interval, "--checkpoint.async=true"};
    Child child(command(2, flags));
    ASSERT_TRUE(child.wait_for("  loss ")) << child.wait(1).output;
    ASSERT_EQ(::kill(child.pid(), SIGUSR1), 0);
    expect_saved_and_goes_on(child.wait(), 2, flags);
    EXPECT_THAT(test::run({program("mica-inspect"), run_folder()}).output, HasSubstr("none: parameters only")) << "that of the last step";
  }
}

// Without mpirun, which answers an interrupt itself.
TEST_F(Stop, AnInterruptAtATerminalSaves) {
  Child child({program("mica-train"), folder_ / "run.cfg"});
  ASSERT_TRUE(child.wait_for("  loss ")) << child.wait(1).output;
  ASSERT_EQ(::kill(child.pid(), SIGINT), 0);
  expect_saved_and_goes_on(child.wait(), 1);
}

// Of `mica-train ... | tee log`, Ctrl-C ends tee first.
TEST_F(Stop, TheReaderOfItsOutputMayEndBeforeTheSave) {
  const std::string piped = "trap : INT; \"$0\" \"$1\" 2>&1 | head -n 1; exit \"${PIPESTATUS[0]}\"";
  Child child({"/bin/bash", "-c", piped, program("mica-train"), folder_ / "run.cfg"});
  while (child.is_running() && step_lines(run_folder()).empty()) std::this_thread::sleep_for(20ms);
  ASSERT_EQ(::kill(-child.pid(), SIGINT), 0);
  const Finished stopped = child.wait();
  EXPECT_EQ(stopped.status, 75) << stopped.output;
  EXPECT_GT(newest(), 0);
}

// Before its first step there is nothing to save, and no time to lose. The ranks stand still when the signal comes, so that it
// comes while they start; each attempt that was too late is made again.
TEST_F(Stop, ASignalWhileItStartsEndsItBeforeTheFirstStep) {
  for (const int num_ranks : {1, 2, 4}) {
    bool is_hit = false;
    for (int attempt = 0; attempt < 20 && !is_hit; ++attempt) {
      fs::remove_all(run_folder());
      Child child(command(num_ranks));
      const std::vector<pid_t> ranks = child.ranks(num_ranks);
      ASSERT_THAT(ranks, SizeIs(static_cast<std::size_t>(num_ranks)));
      ASSERT_TRUE(wait_for_signal(ranks.back(), "SigBlk", SIGUSR1)) << child.wait(1).output;
      to_all(ranks, SIGSTOP);
      is_hit = !fs::exists(metrics());
      ::kill(ranks.back(), SIGUSR1);
      to_all(ranks, SIGCONT);
      const Finished stopped = child.wait();
      EXPECT_EQ(stopped.status, 75) << stopped.output;
      if (!is_hit) continue;
      EXPECT_THAT(stopped.output, AllOf(HasSubstr("stopped before step 1 of 100000000, while the run started: SIGUSR1 on rank " +
                                                  std::to_string(num_ranks - 1)),
                                        HasSubstr("start the same command again")));
      EXPECT_THAT(checkpoints_of(run_folder()), IsEmpty());
      EXPECT_FALSE(fs::exists(run_folder() + "/run.lock"));
    }
    EXPECT_TRUE(is_hit) << "each time the run had begun";
  }
}

// An evaluation of minutes.
TEST_F(Stop, ASignalWhileItValidatesGivesTheEvaluationUp) {
  constexpr std::int64_t kTokens = 200'000'000;  // a hole: zeros
  write_tokens(folder_ / "val.bin", 10);
  fs::resize_file(folder_ / "val.bin", 2 * kTokens);
  const std::vector<std::string> flags{"--data.val=" + (folder_ / "val.bin"), "--train.eval_interval=20", "--train.eval_batches=0"};
  for (const int num_ranks : {1, 2, 4}) {
    fs::remove_all(run_folder());
    Child child(command(num_ranks, flags));
    const std::vector<pid_t> ranks = child.ranks(num_ranks);
    ASSERT_THAT(ranks, SizeIs(static_cast<std::size_t>(num_ranks)));
    ASSERT_TRUE(child.wait_for("step     20/")) << child.wait(1).output;  // the evaluation comes behind it
    ::kill(ranks.back(), SIGTERM);
    const Finished stopped = child.wait();
    EXPECT_THAT(stopped.output, HasSubstr("stops after step 20, without its evaluation: SIGTERM"));
    EXPECT_THAT(stopped.output, Not(HasSubstr("validation loss")));
    expect_saved_and_goes_on(stopped, num_ranks);
  }
}

// The ranks stand still inside a save while the signal comes. A save that is waited for is the last thing done; one in the background
// is finished, and followed by one of the last step.
TEST_F(Stop, ASignalWhileItSavesFinishesTheSave) {
  for (const char* async : {"false", "true"}) {
    for (const int num_ranks : {1, 2, 4}) {
      SCOPED_TRACE(std::string("checkpoint.async=") + async + ", ranks " + std::to_string(num_ranks));
      std::vector<std::string> half;
      for (int attempt = 0; attempt < 20 && half.empty(); ++attempt) {
        fs::remove_all(run_folder());
        Child child(command(num_ranks, {"--checkpoint.interval=3", std::string("--checkpoint.async=") + async}));
        const std::vector<pid_t> ranks = child.ranks(num_ranks);
        ASSERT_THAT(ranks, SizeIs(static_cast<std::size_t>(num_ranks)));
        const auto begin = Clock::now();
        while (half_saves().empty() && Clock::now() - begin < 30s) {
        }
        to_all(ranks, SIGSTOP);
        std::this_thread::sleep_for(20ms);  // what a system call has begun
        half = half_saves();
        std::erase_if(half, [](const std::string& name) { return name.ends_with(".old.tmp"); });
        ::kill(ranks.back(), SIGUSR1);
        to_all(ranks, SIGCONT);
        const Finished stopped = child.wait();
        EXPECT_EQ(stopped.status, 75) << stopped.output;
        if (half.empty()) continue;
        if (async == std::string("false")) {
          EXPECT_TRUE(half[0].starts_with(checkpoints_of(run_folder()).back())) << half[0] << "\n" << stopped.output;
        }
        expect_saved_and_goes_on(stopped, num_ranks);
      }
      EXPECT_THAT(half, Not(IsEmpty())) << "no signal came inside a save";
    }
  }
}

/// Flags of a run whose first step takes minutes: nothing can be saved before it ends.
const std::vector<std::string> kOneLongStep{"--model.width=512", "--model.layers=8", "--train.micro_batch=64",
                                            "--train.global_batch=256000"};

TEST_F(Stop, ASecondSignalEndsItAtOnce) {
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1}) {
    SCOPED_TRACE(signal);
    bool is_in_step = false;
    for (int attempt = 0; attempt < 10 && !is_in_step; ++attempt) {
      fs::remove_all(run_folder());
      Child child(std::vector<std::string>{program("mica-train"), folder_ / "run.cfg"} + kOneLongStep);
      const auto begin = Clock::now();
      while (!fs::exists(metrics()) && Clock::now() - begin < 30s) std::this_thread::sleep_for(2ms);
      std::this_thread::sleep_for(500ms);
      ASSERT_EQ(::kill(child.pid(), signal), 0);
      std::this_thread::sleep_for(1500ms);  // sooner it would be the same request
      is_in_step = child.is_running();
      ASSERT_TRUE(is_in_step || child.wait(1).output.find("while the run started") != std::string::npos) << "the first lets the step end";
      if (!is_in_step) continue;
      ASSERT_EQ(::kill(child.pid(), signal), 0);
      const Finished ended = child.wait(20);
      EXPECT_FALSE(ended.is_timed_out) << ended.output;
      EXPECT_EQ(ended.status, 128 + signal) << ended.output;
      EXPECT_THAT(checkpoints_of(run_folder()), IsEmpty());
    }
    EXPECT_TRUE(is_in_step);
  }
}

// A handler on a thread that computes would write its frame into the heap where oneDNN uses the stack pointer for data (AVX2).
TEST_F(Stop, SignalsDoNotInterruptProducts) {
  const std::vector<std::string> flags{"--model.type=gpt2",      "--model.layers=1",         "--model.heads=2",     "--model.width=128",
                                       "--model.context=256",    "--model.vocab_size=4096",  "--train.seq_len=256", "--train.micro_batch=8",
                                       "--train.log_interval=1", "--run.dir=" + run_folder()};
  Child child(command(1, flags));
  const std::vector<pid_t> ranks = child.ranks(1);
  ASSERT_THAT(ranks, SizeIs(1));
  ASSERT_TRUE(child.wait_for("  loss ")) << child.wait(1).output;
  const auto begin = Clock::now();
  for (int i = 0; i < 500 && Clock::now() - begin < 800ms; ++i) {  // one request
    ::kill(ranks[0], SIGUSR1);
    std::this_thread::sleep_for(50us);
  }
  const Finished stopped = child.wait();
  EXPECT_EQ(stopped.status, 75) << stopped.output;
  EXPECT_EQ(test::run({program("mica-inspect"), "verify", run_folder()}).status, 0);
}

// Launchers send a signal to a process and to its group. An attempt in which the second came late is made again.
TEST_F(Stop, TwoSignalsWithinASecondAreOneRequest) {
  bool is_in_time = false;
  for (int attempt = 0; attempt < 10 && !is_in_time; ++attempt) {
    fs::remove_all(run_folder());
    Child child(command(2));
    const std::vector<pid_t> ranks = child.ranks(2);
    ASSERT_THAT(ranks, SizeIs(2));
    ASSERT_TRUE(child.wait_for("  loss ")) << child.wait(1).output;
    // Rank 0 waits for rank 1, which stands still, so that both signals come before the end.
    ::kill(ranks[1], SIGSTOP);
    const auto begin = Clock::now();
    ::kill(ranks[0], SIGTERM);
    ASSERT_TRUE(wait_for_signal(ranks[0], "ShdPnd", SIGTERM, false));
    ::kill(ranks[0], SIGUSR1);
    ASSERT_TRUE(wait_for_signal(ranks[0], "ShdPnd", SIGUSR1, false));
    is_in_time = Clock::now() - begin < 900ms;
    ::kill(ranks[1], SIGCONT);
    const Finished stopped = child.wait();
    if (is_in_time) expect_saved_and_goes_on(stopped, 2);
  }
  EXPECT_TRUE(is_in_time);
}

// Killed before anything was saved, or told to stop while it starts: a job that is queued again would do so for ever.
TEST_F(Stop, TheThirdStartWithoutProgressSaysSoAndIsNotQueuedAgain) {
  const auto kill_one = [&](const std::vector<std::string>& flags = {}) {
    Child child(command(2, flags));
    const std::vector<pid_t> ranks = child.ranks(2);
    ASSERT_TRUE(child.wait_for("  loss ")) << child.wait(1).output;
    to_all(ranks, SIGKILL);
    (void)child.wait(20);
    ASSERT_TRUE(have_ended(ranks, 20));
  };
  const auto expect_told = [&](std::int64_t step, const std::vector<std::string>& flags = {}) {
    const std::int64_t before = newest();
    const Finished told = test::run(command(2, flags));
    EXPECT_EQ(told.status, 3) << told.output;
    ASSERT_THAT(told.error_lines(), SizeIs(1)) << told.output;
    EXPECT_THAT(told.error_lines()[0], AllOf(HasSubstr("makes no progress: its last 2 starts began after step " + std::to_string(step)),
                                             HasSubstr(run_folder() + "/log.txt"), HasSubstr("start the same command again")));
    EXPECT_EQ(newest(), before);
  };
  kill_one();
  kill_one();
  expect_told(0);
  // Whoever starts it by hand has mended the cause.
  kill_one();
  const Finished saved = test::run(command(2, {"--train.max_hours=1e-9"}));
  EXPECT_EQ(saved.status, 75) << saved.output;
  ASSERT_EQ(newest(), 1);
  for (int start = 0; start < 2; ++start) {  // each one saves
    const Finished one_step = test::run(command(2, {"--train.max_hours=1e-9"}));
    EXPECT_EQ(one_step.status, 75) << one_step.output;
  }
  ASSERT_EQ(newest(), 3);
  kill_one();
  kill_one();
  kill_one({"--checkpoint.interval=1000000"});  // a changed config is a mended cause, too
  kill_one({"--checkpoint.interval=1000000"});
  expect_told(3, {"--checkpoint.interval=1000000"});
}

TEST_F(Stop, SignalsWhileItStartsAreStartsWithoutProgressAndRefusalsAreNone) {
  ASSERT_EQ(test::run(command(1, {"--train.steps=2", "--checkpoint.optimizer=false"})).status, 0);
  for (int start = 0; start < 4; ++start) {  // such a checkpoint cannot be resumed, which each start says
    const Finished refused = test::run(command(1));
    EXPECT_EQ(refused.status, 2) << refused.output;
    EXPECT_THAT(refused.output, AllOf(HasSubstr("without the optimizer state"), Not(HasSubstr("newer checkpoints"))));
  }
  fs::remove_all(run_folder());
  int num_starts = 0;
  Finished last;
  for (int attempt = 0; attempt < 40 && num_starts < 3; ++attempt) {
    Child child(command(1));
    const std::vector<pid_t> ranks = child.ranks(1);
    ASSERT_THAT(ranks, SizeIs(1));
    ASSERT_TRUE(wait_for_signal(ranks[0], "SigBlk", SIGUSR1)) << child.wait(1).output;
    ::kill(ranks[0], SIGUSR1);
    last = child.wait();
    ++num_starts;
    if (newest() > 0) {  // too late
      num_starts = 0;
      fs::remove_all(run_folder());
    }
  }
  ASSERT_EQ(num_starts, 3);
  EXPECT_EQ(last.status, 3) << last.output;
  EXPECT_THAT(last.output, HasSubstr("makes no progress"));
}

}  // namespace
}  // namespace mica::test
