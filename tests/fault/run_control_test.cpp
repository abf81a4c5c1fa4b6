// What ends, checks and records a run: time limits, drift checks, traces, threads, messages.

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sched.h>

#include "fault/support/training.hpp"
#include "support/temporary_folder.hpp"

namespace mica::test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

/// Whether a process installs a handler of SIGUSR1 within the limit, as mica-train does before its first step.
bool handles_sigusr1(pid_t pid, double limit_s) {
  const std::string caught = "SigCgt:";
  for (double waited = 0; waited < limit_s; waited += 0.01) {
    std::ifstream status("/proc/" + std::to_string(pid) + "/status");
    for (std::string line; std::getline(status, line);) {
      if (line.starts_with(caught) && (std::stoull(line.substr(caught.size()), nullptr, 16) >> (SIGUSR1 - 1) & 1) != 0) return true;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

class RunControl : public ::testing::Test {
 protected:
  RunControl() {
    write_tokens(folder_ / "tokens.bin", 4000);
    write_text(folder_ / "run.cfg",
               "[model]\ntype = mlp\nlayers = 2\nwidth = 16\nvocab_size = 16\n"
               "[data]\ntrain = " + (folder_ / "tokens.bin") + "\n"
               "[train]\nsteps = 8\nmicro_batch = 2\nseq_len = 16\nlog_interval = 1\n"
               "[run]\ndir = " + run_folder() + "\n");
  }
  [[nodiscard]] std::string run_folder() const { return folder_ / "run"; }
  [[nodiscard]] Finished train(const std::vector<std::string>& flags, int num_ranks = 2) const {
    return test::run(training(num_ranks, folder_ / "run.cfg", flags));
  }
  /// How often each task of a stream stands in a rank's trace.
  [[nodiscard]] std::map<std::string, int> traced(int rank) const {
    std::map<std::string, int> times;
    const auto trace = nlohmann::json::parse(read_text(run_folder() + "/trace-rank" + std::to_string(rank) + ".json"));
    for (const auto& event : trace.at("traceEvents")) {
      if (event.at("ph") == "X") ++times[event.at("name")];
    }
    return times;
  }

  TemporaryFolder folder_;
};

TEST_F(RunControl, ATimeLimitSavesAndAsksToBeQueuedAgain) {
  const std::vector<std::string> flags{"--train.steps=100000000", "--train.max_hours=0.0002"};  // 0.72 s
  const Finished stopped = train(flags);
  EXPECT_EQ(stopped.status, 75) << stopped.output;
  EXPECT_THAT(stopped.output, HasSubstr("start the same command again to resume"));
  const std::vector<StepLine> lines = step_lines(run_folder());
  ASSERT_GE(lines.size(), 1u);
  const std::int64_t last = lines.back().step;
  EXPECT_THAT(stopped.output, HasSubstr("stopped after step " + std::to_string(last) + " of"));
  std::vector<std::string> saved = checkpoints_of(run_folder());
  ASSERT_EQ(saved.size(), 1u) << "nothing else asked for a checkpoint";
  EXPECT_EQ(std::stoll(saved[0].substr(5)), last);
  // The same command goes on, and has as long again.
  const Finished again = train(flags);
  EXPECT_EQ(again.status, 75) << again.output;
  EXPECT_EQ(first_progress_step(again.output), last + 1);
  EXPECT_GT(step_lines(run_folder()).back().step, last + 1);
  // Without a limit it ends by itself.
  const Finished ended = train({"--train.max_hours=0", "--run.dir=" + (folder_ / "other")});
  EXPECT_EQ(ended.status, 0) << ended.output;
}

// Without mpirun, which answers an interrupt itself.
TEST_F(RunControl, AnInterruptSaves) {
  Child child({program("mica-train"), folder_ / "run.cfg", "--train.steps=100000000"});
  ASSERT_TRUE(child.wait_for("  loss ")) << child.wait(1).output;
  ASSERT_EQ(::kill(child.pid(), SIGINT), 0);
  const Finished stopped = child.wait(30);
  EXPECT_EQ(stopped.status, 75) << stopped.output;
  const std::vector<std::string> saved = checkpoints_of(run_folder());
  ASSERT_EQ(saved.size(), 1u) << stopped.output;
  EXPECT_EQ(std::stoll(saved[0].substr(5)), step_lines(run_folder()).back().step);
}

TEST_F(RunControl, ASecondInterruptEndsAtOnce) {
  // One step of minutes: nothing can be saved before it ends.
  Child child({program("mica-train"), folder_ / "run.cfg", "--model.width=512", "--model.layers=8", "--train.micro_batch=64",
               "--train.global_batch=256000"});
  ASSERT_TRUE(handles_sigusr1(child.pid(), 30)) << child.wait(1).output;
  ASSERT_EQ(::kill(child.pid(), SIGINT), 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  ASSERT_TRUE(child.is_running()) << "the first one lets the step end";
  ASSERT_EQ(::kill(child.pid(), SIGINT), 0);
  const Finished ended = child.wait(10);
  EXPECT_FALSE(ended.is_timed_out) << ended.output;
  EXPECT_EQ(ended.status, 128 + SIGINT) << ended.output;
  EXPECT_TRUE(checkpoints_of(run_folder()).empty());
}

TEST_F(RunControl, ReplicasAreComparedAtTheStepsOfTheInterval) {
  // Steps 1 to 7 are in the trace, and what comes behind each of them but the last.
  for (const auto& [interval, checks] : std::map<std::string, int>{{"0", 0}, {"1", 6}, {"2", 3}, {"3", 2}, {"7", 0}}) {
    fs::remove_all(run_folder());
    const Finished run = train({"--train.drift_interval=" + interval, "--fsdp.strategy=no_shard", "--log.trace=1-7"});
    ASSERT_EQ(run.status, 0) << run.output;
    for (const int rank : {0, 1}) EXPECT_EQ(traced(rank)["all_gather replica hashes"], checks) << "interval " << interval;
  }
}

TEST_F(RunControl, ATraceHoldsItsStepsAndNoOthers) {
  const auto optimizer_steps = [&](const std::string& range) {
    fs::remove_all(run_folder());
    const Finished run = train({"--log.trace=" + range});
    EXPECT_EQ(run.status, 0) << run.output;
    EXPECT_THAT(run.output, HasSubstr(run_folder() + "/trace-rank0.json"));
    EXPECT_EQ(traced(0)["adamw"], traced(1)["adamw"]);
    return traced(0)["adamw"];
  };
  const int one = optimizer_steps("2-2");
  EXPECT_GT(one, 0);
  EXPECT_EQ(optimizer_steps("2-4"), 3 * one);
  EXPECT_EQ(optimizer_steps("1-8"), 8 * one);
  fs::remove_all(run_folder());
  ASSERT_EQ(train({}).status, 0);
  EXPECT_FALSE(fs::exists(run_folder() + "/trace-rank0.json"));
}

TEST_F(RunControl, OtherDataIsAllowedOnlyWhenAskedFor) {
  ASSERT_EQ(train({"--train.steps=2"}).status, 0);
  const Finished refused = train({"--data.order=sequential"});
  EXPECT_EQ(refused.status, 2) << refused.output;
  EXPECT_THAT(refused.output, HasSubstr("data.order = shuffled, but this run has sequential"));
  EXPECT_EQ(step_lines(run_folder()).size(), 2u);
  const Finished allowed = train({"--data.order=sequential", "--checkpoint.allow_data_change=true"});
  EXPECT_EQ(allowed.status, 0) << allowed.output;
  EXPECT_THAT(allowed.output, HasSubstr("data.order: shuffled -> sequential"));
  EXPECT_EQ(step_lines(run_folder()).size(), 8u);
}

TEST_F(RunControl, LogLevelsHideWhatIsLessImportant) {
  const Finished info = train({});
  EXPECT_THAT(info.output, HasSubstr("saved "));
  const Finished error = train({"--log.level=error", "--train.steps=9"});
  EXPECT_EQ(error.status, 0) << error.output;
  EXPECT_THAT(error.output, Not(HasSubstr("saved ")));
  EXPECT_EQ(first_progress_step(error.output), 0) << error.output;
}

// Ranks that are not bound share the cores that they may run on.
TEST_F(RunControl, ThreadsAreSharedOutAmongTheRanksOfANode) {
  cpu_set_t mask;
  ASSERT_EQ(sched_getaffinity(0, sizeof mask, &mask), 0);
  const int cores = CPU_COUNT(&mask);
  const auto threads_of = [&](int num_ranks, const std::vector<std::string>& environment) {
    std::vector<std::string> command{"env", "-u", "OMP_NUM_THREADS"};
    command.insert(command.end(), environment.begin(), environment.end());
    command.insert(command.end(), {program("mica-train"), folder_ / "run.cfg", "--check"});
    const std::string said = test::run(under_mpirun(num_ranks, command)).output;
    const std::size_t at = said.find("CPU, ");
    return at == std::string::npos ? -1 : std::stoi(said.substr(at + 5));
  };
  EXPECT_EQ(threads_of(1, {}), cores);
  EXPECT_EQ(threads_of(2, {}), std::max(1, cores / 2));
  EXPECT_EQ(threads_of(3, {}), std::max(1, cores / 3));
  EXPECT_EQ(threads_of(2, {"OMP_NUM_THREADS=3"}), 3);
}

}  // namespace
}  // namespace mica::test
