// SPDX-License-Identifier: Apache-2.0
// What ends, checks and records a run: time limits, drift checks, traces, threads, messages.

#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "fault/support/training.hpp"
#include "support/temporary_folder.hpp"

namespace mica::test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

class RunControl : public ::testing::Test {
 protected:
  RunControl() {
    write_tokens(folder_ / "tokens.bin", 4000);
    write_text(folder_ / "run.cfg",
               "[model]\ntype = mlp\nlayers = 2\nwidth = 16\nvocab_size = 16\n"
               "[data]\ntrain = " +
                   (folder_ / "tokens.bin") +
                   "\n"
                   "[train]\nsteps = 8\nmicro_batch = 2\nseq_len = 16\nlog_interval = 1\n"
                   "[run]\ndir = " +
                   run_folder() + "\n");
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

// The limit is shorter than a step: each launch does one, and the last of them ends the run.
TEST_F(RunControl, ATimeLimitSavesAndAsksToBeQueuedAgain) {
  const std::vector<std::string> flags{"--train.steps=3", "--train.max_hours=1e-9"};
  const Finished refused_then =
      train({"--train.steps=3", "--train.max_hours=1e-9", "--checkpoint.resume=none", "--run.dir=" + (folder_ / "x")});
  EXPECT_EQ(refused_then.status, 75) << refused_then.output;
  EXPECT_THAT(refused_then.output, HasSubstr("start the same command again with --checkpoint.resume=auto to resume"));
  const Finished by_its_config = test::run(training(2, folder_ / "x/config.resolved.cfg", {}));
  EXPECT_EQ(by_its_config.status, 75) << by_its_config.output;
  EXPECT_EQ(first_progress_step(by_its_config.output), 2);
  for (const std::int64_t step : {1, 2}) {
    const Finished stopped = train(flags);
    EXPECT_EQ(stopped.status, 75) << stopped.output;
    EXPECT_THAT(stopped.output, HasSubstr("stopped after step " + std::to_string(step) + " of 3; start the same command again to resume"));
    EXPECT_EQ(first_progress_step(stopped.output), step);
    EXPECT_EQ(step_lines(run_folder()).size(), static_cast<std::size_t>(step));
    EXPECT_EQ(checkpoints_of(run_folder()).back(), "step-0000000" + std::to_string(step)) << "nothing else asked for a checkpoint";
  }
  const Finished ended = train(flags);
  EXPECT_EQ(ended.status, 0) << ended.output;
  EXPECT_EQ(step_lines(run_folder()).size(), 3u);
  EXPECT_FALSE(fs::exists(run_folder() + "/starts.json")) << "the run is done";
  const Finished unlimited = train({"--train.max_hours=0", "--run.dir=" + (folder_ / "other")});
  EXPECT_EQ(unlimited.status, 0) << unlimited.output;
}

// The time of a step, by which ranks decide how often they ask each other, is that of this launch's steps.
TEST_F(RunControl, AResumedRunOfSlowStepsHearsASignalSoon) {
  ASSERT_EQ(train({"--train.steps=400", "--train.log_interval=400"}).status, 0);
  Child child(
      training(2, folder_ / "run.cfg", {"--train.steps=100000", "--train.global_batch=2000", "--checkpoint.allow_data_change=true"}));
  ASSERT_TRUE(child.wait_for("  loss ", 300)) << child.wait(1).output;
  ASSERT_EQ(::kill(child.pid(), SIGUSR1), 0);
  const Finished stopped = child.wait();
  EXPECT_EQ(stopped.status, 75) << stopped.output;
  EXPECT_LE(step_lines(run_folder()).back().step, 440);
}

// A background save stalls a step for next to no time, which is not that of a step.
TEST_F(RunControl, SlowStepsHearASignalSoonAfterABackgroundSave) {
  Child child(
      training(2, folder_ / "run.cfg",
               {"--train.steps=100000", "--train.global_batch=4000", "--checkpoint.async=true", "--checkpoint.interval_minutes=0.01"}));
  ASSERT_TRUE(child.wait_for("saved ")) << child.wait(1).output;
  const std::int64_t heard_at = step_lines(run_folder()).back().step;
  ASSERT_EQ(::kill(child.pid(), SIGUSR1), 0);
  const Finished stopped = child.wait();
  EXPECT_EQ(stopped.status, 75) << stopped.output;
  EXPECT_LE(step_lines(run_folder()).back().step, heard_at + 5) << stopped.output;
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

TEST_F(RunControl, AComparisonOfReplicasThatAreNotThereIsSaid) {
  const std::string words = "train.drift_interval = 1 has no effect here";
  EXPECT_THAT(train({"--train.drift_interval=1", "--fsdp.strategy=full_shard"}).output, HasSubstr(words));
  fs::remove_all(run_folder());
  EXPECT_THAT(train({"--train.drift_interval=1", "--fsdp.strategy=no_shard"}).output, Not(HasSubstr(words)));
}

TEST_F(RunControl, EvaluationsWithoutDataAreSaid) {
  EXPECT_THAT(train({"--train.eval_interval=2"}).output, HasSubstr("train.eval_interval = 2 has no effect here: data.val is empty"));
  fs::remove_all(run_folder());
  EXPECT_THAT(train({"--train.eval_interval=2", "--data.val=" + (folder_ / "tokens.bin")}).output, Not(HasSubstr("has no effect")));
}

TEST_F(RunControl, ADtypeOfBuffersThatAreNotThereIsSaid) {
  EXPECT_THAT(train({"--fsdp.buffer_dtype=bf16"}).output, HasSubstr("fsdp.buffer_dtype = bf16 has no effect here"));
}

TEST_F(RunControl, BackgroundSavesWithoutAnIntervalAreSaid) {
  const std::string words = "checkpoint.async = true has no effect here";
  EXPECT_THAT(train({"--checkpoint.async=true"}).output, HasSubstr(words));
  fs::remove_all(run_folder());
  EXPECT_THAT(train({"--checkpoint.async=true", "--checkpoint.interval=4"}).output, Not(HasSubstr(words)));
  fs::remove_all(run_folder());
  EXPECT_THAT(train({"--checkpoint.async=true", "--checkpoint.interval_minutes=5"}).output, Not(HasSubstr(words)));
}

// Each sum of bf16 loses what is less than half a step of it.
TEST_F(RunControl, ManyRoundedSumsOfGradientsAreSaid) {
  const auto output = [&](const std::string& global_batch, const std::string& dtype) {
    fs::remove_all(run_folder());
    const Finished run = train({"--train.steps=1", "--train.gradient_sync=no_sync", "--train.global_batch=" + global_batch,
                                "--fsdp.param_dtype=bf16", "--fsdp.reduce_dtype=" + dtype});
    EXPECT_EQ(run.status, 0) << run.output;
    return run.output;
  };
  const std::string words = "adds up the gradients of 17 micro-batches in bf16";
  EXPECT_THAT(output("68", "bf16"), HasSubstr(words));
  EXPECT_THAT(output("64", "bf16"), Not(HasSubstr("adds up")));
  EXPECT_THAT(output("68", "fp32"), Not(HasSubstr("adds up")));
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

TEST_F(RunControl, ATraceOfInlineStreamsHidesNothing) {
  const Finished run = train({"--log.trace=2-7", "--mesh.streams=inline"});
  ASSERT_EQ(run.status, 0) << run.output;
  const Finished report = test::run({program("mica-report"), "traces", run_folder()});
  EXPECT_EQ(report.status, 0) << report.output;
  for (const char* rank : {"rank 0: ", "rank 1: "}) {
    EXPECT_THAT(report.output, ::testing::ContainsRegex(std::string(rank) + ".*, hidden 0 %")) << report.output;
  }
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

// On the terminal and in log.txt.
TEST_F(RunControl, LogLevelsHideWhatIsLessImportant) {
  const std::string info = "saved ", warning = "has no replicas";
  for (const auto& [level, shown] : std::map<std::string, int>{{"debug", 2}, {"info", 2}, {"warn", 1}, {"error", 0}}) {
    SCOPED_TRACE(level);
    fs::remove_all(run_folder());
    const Finished run = train({"--log.level=" + level, "--fsdp.strategy=hybrid_shard", "--mesh.shard_size=2"});
    EXPECT_EQ(run.status, 0) << run.output;
    for (const std::string& text : {run.output, read_text(run_folder() + "/log.txt")}) {
      EXPECT_EQ(text.find(info) != std::string::npos, shown == 2) << text;
      EXPECT_EQ(text.find(warning) != std::string::npos, shown >= 1) << text;
    }
    EXPECT_EQ(step_lines(run_folder()).size(), 8u) << "metrics.jsonl has no levels";
  }
  // An error is shown at every level.
  const Finished refused = train({"--log.level=error", "--run.seed=7"});
  EXPECT_EQ(refused.status, 2);
  EXPECT_EQ(refused.error_lines().size(), 1u) << refused.output;
}

}  // namespace
}  // namespace mica::test
