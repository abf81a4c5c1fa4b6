// SPDX-License-Identifier: Apache-2.0
// What a run's folder promises: one job at a time, one line of checkpoints, a batch and data that belong to the run.

#include <csignal>
#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "fault/support/training.hpp"
#include "support/temporary_folder.hpp"
#include "support/unreadable_file.hpp"

namespace mica::test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class RunFolder : public ::testing::Test {
 protected:
  RunFolder() {
    write_tokens(folder_ / "tokens.bin", 20'000);
    write_tokens(folder_ / "val.bin", 3'000);
    write_text(folder_ / "run.cfg",
               "[model]\ntype = gpt2\nlayers = 2\nheads = 2\nwidth = 24\nvocab_size = 256\ncontext = 32\n"
               "[data]\ntrain = " +
                   (folder_ / "tokens.bin") + "\nval = " + (folder_ / "val.bin") +
                   "\n"
                   "[train]\nsteps = 12\nmicro_batch = 2\nseq_len = 32\nlog_interval = 1\n"
                   "[optim]\ntype = sgd\nlr = 0.1\nschedule = constant\n"
                   "[checkpoint]\ninterval = 4\nkeep = 0\n");
  }
  [[nodiscard]] std::string run_folder(const std::string& name = "run") const { return folder_ / name; }
  [[nodiscard]] std::string checkpoint(int step, const std::string& name = "run") const {
    std::string digits = std::to_string(step);
    return run_folder(name) + "/checkpoints/step-" + std::string(8 - digits.size(), '0') + digits;
  }
  [[nodiscard]] std::vector<std::string> command(int num_ranks, std::vector<std::string> flags, const std::string& name = "run") const {
    flags.push_back("--run.dir=" + run_folder(name));
    return training(num_ranks, folder_ / "run.cfg", flags);
  }
  Finished train(int num_ranks, std::vector<std::string> flags = {}, const std::string& name = "run") const {
    return test::run(command(num_ranks, std::move(flags), name));
  }
  /// Refused by all ranks, with one line.
  void expect_refusal(const Finished& finished, const std::vector<std::string>& parts) const {
    EXPECT_EQ(finished.status, 2) << finished.output;
    ASSERT_EQ(finished.error_lines().size(), 1U) << finished.output;
    for (const std::string& part : parts) EXPECT_THAT(finished.error_lines()[0], HasSubstr(part));
  }
  [[nodiscard]] std::vector<nlohmann::json> rows(const std::string& event, const std::string& name = "run") const {
    std::vector<nlohmann::json> found;
    std::ifstream file(run_folder(name) + "/metrics.jsonl");
    for (std::string line; std::getline(file, line);) {
      auto json = nlohmann::json::parse(line);
      if (json["event"] == event) found.push_back(std::move(json));
    }
    return found;
  }
  /// @returns run.lock, which now names a job on another host
  [[nodiscard]] std::string give_to_another_job() const {
    std::string lock = read_text(run_folder() + "/run.lock");
    write_text(run_folder() + "/run.lock.new", lock.insert(lock.find("\"host\":\"") + 8, "other-"));
    fs::rename(run_folder() + "/run.lock.new", run_folder() + "/run.lock");
    return lock;
  }
  [[nodiscard]] nlohmann::json inspect(const std::string& path) const {
    const Finished finished = test::run({program("mica-inspect"), "--json", path});
    EXPECT_EQ(finished.status, 0) << finished.output;
    return nlohmann::json::parse(finished.output);
  }

  TemporaryFolder folder_;
};

TEST_F(RunFolder, ASecondJobIsRefusedAndHarmsNothing) {
  Child first(command(2, {"--train.steps=100000", "--checkpoint.interval=50", "--checkpoint.keep=2"}));
  ASSERT_TRUE(first.wait_for("step-00000050"));
  const pid_t owner = first.ranks(2).at(0);
  for (const int num_ranks : {1, 2}) {
    const Finished second = train(num_ranks);
    expect_refusal(second, {"in use by another job", "process " + std::to_string(owner) + " on host", "since 20", run_folder()});
    EXPECT_LT(second.seconds, 60) << "it does not wait for the other";
  }
  EXPECT_EQ(test::run({program("mica-train"), folder_ / "run.cfg", "--check", "--run.dir=" + run_folder()}).status, 0)
      << "--check only looks";
  ASSERT_TRUE(first.is_running());
  for (const pid_t rank : first.ranks(2)) ::kill(rank, SIGKILL);
  (void)first.wait(20);
  EXPECT_TRUE(fs::exists(run_folder() + "/run.lock")) << "killed: the lock stays";
  const std::string newest = checkpoints_of(run_folder()).back();
  const Finished next = train(2, {"--train.steps=" + std::to_string(std::stoi(newest.substr(5)) + 1)});
  EXPECT_EQ(next.status, 0) << next.output;
  EXPECT_FALSE(fs::exists(run_folder() + "/run.lock"));
}

// The lock is taken away from a running job: it ends before it publishes anything else, whether the heartbeat or a save is next.
TEST_F(RunFolder, AJobThatHasLostTheFolderEnds) {
  for (const std::string flag : {"--checkpoint.interval=0", "--checkpoint.interval=1", "--checkpoint.async=true"}) {
    fs::remove_all(run_folder());
    std::vector<std::string> flags{"--train.steps=1000000", flag};
    if (flag == "--checkpoint.async=true") flags.emplace_back("--checkpoint.interval=1");
    Child first(command(2, flags));
    ASSERT_TRUE(first.wait_for("step     50/"));
    const std::string lock = give_to_another_job();
    const Finished lost = first.wait(60);
    EXPECT_FALSE(lost.is_timed_out);
    EXPECT_EQ(lost.status, 3) << lost.output;
    ASSERT_EQ(lost.error_lines().size(), 1U) << lost.output;
    EXPECT_THAT(lost.error_lines()[0], AllOf(HasSubstr("taken the folder over"), HasSubstr("on host other-")));
    EXPECT_TRUE(flag != "--checkpoint.interval=0" || checkpoints_of(run_folder()).empty());
    EXPECT_EQ(read_text(run_folder() + "/run.lock"), lock) << "it is the other job's";
  }
}

// Which happens while a step runs that the host has enqueued; its batches, of more than 512 KiB, are memory that free() unmaps.
TEST_F(RunFolder, AJobThatLosesTheFolderInAStepEndsLikeAnyOther) {
  for (const char* strategy : {"--fsdp.strategy=full_shard", "--fsdp.strategy=no_shard"}) {
    fs::remove_all(run_folder());
    Child first(command(2, {"--train.steps=1000000", "--checkpoint.interval=0", "--mesh.streams=threaded", "--train.micro_batch=5000",
                            "--model.layers=1", "--model.heads=1", strategy}));
    ASSERT_TRUE(first.wait_for("step      1/")) << first.wait(1).output;
    (void)give_to_another_job();
    const Finished lost = first.wait(60);
    EXPECT_EQ(lost.status, 3) << lost.output;
    ASSERT_EQ(lost.error_lines().size(), 1U) << lost.output;
    EXPECT_THAT(lost.error_lines()[0], HasSubstr("taken the folder over"));
  }
}

TEST_F(RunFolder, GoingBackSetsTheLaterLineAside) {
  ASSERT_EQ(train(2).status, 0);
  const std::vector<StepLine> first_line = step_lines(run_folder());
  const nlohmann::json whole = inspect(run_folder())["line"];
  ASSERT_EQ(whole.size(), 3U) << "each checkpoint of a launch names the one before";
  EXPECT_EQ(whole[0]["step"], 4);
  const std::string back = "--checkpoint.resume=" + checkpoint(4);
  const Finished went_back = train(2, {back, "--train.steps=6", "--optim.lr=0.05"});
  ASSERT_EQ(went_back.status, 0) << went_back.output;
  EXPECT_EQ(first_progress_step(went_back.output), 5);
  EXPECT_THAT(went_back.output, HasSubstr("went back to step 4"));
  EXPECT_THAT(checkpoints_of(run_folder()), ElementsAre("set-aside-1", "step-00000004", "step-00000006"));
  const std::string aside = run_folder() + "/checkpoints/set-aside-1";
  EXPECT_EQ(test::run({program("mica-inspect"), "verify", aside + "/step-00000012"}).status, 0);
  EXPECT_TRUE(fs::exists(aside + "/step-00000008"));
  EXPECT_NE(read_text(aside + "/metrics.jsonl").find("\"step\":12"), std::string::npos);
  // Each step once, of the new line from 5 on.
  const std::vector<StepLine> lines = step_lines(run_folder());
  ASSERT_EQ(lines.size(), 6U);
  EXPECT_EQ(std::vector(lines.begin(), lines.begin() + 4), std::vector(first_line.begin(), first_line.begin() + 4));
  EXPECT_EQ(lines[4].loss, first_line[4].loss) << "the same model and data";
  EXPECT_NE(lines[5].loss, first_line[5].loss) << "after a step with another learning rate";
  ASSERT_EQ(rows("resumed").size(), 1U);
  EXPECT_EQ(rows("resumed")[0]["from"], 4);
  EXPECT_EQ(rows("resumed")[0]["set_aside"], aside);

  // The same command goes on with its line, `auto` too, and keep never touches what was set aside.
  const Finished again = train(2, {back, "--train.steps=7", "--optim.lr=0.05"});
  ASSERT_EQ(again.status, 0) << again.output;
  EXPECT_EQ(first_progress_step(again.output), 7) << again.output;
  EXPECT_THAT(again.output, HasSubstr("resumes from " + checkpoint(6)));
  const Finished automatic = train(2, {"--train.steps=8", "--checkpoint.keep=1"});
  ASSERT_EQ(automatic.status, 0) << automatic.output;
  EXPECT_EQ(first_progress_step(automatic.output), 8) << automatic.output;
  EXPECT_THAT(checkpoints_of(run_folder()), ElementsAre("set-aside-1", "step-00000008"));
  // The line still began there, though `auto` has gone on with it and step 4 itself was deleted.
  for (const std::string& path : {checkpoint(4), checkpoint(4) + "/", run_folder() + "/../run/checkpoints/step-00000004"}) {
    const Finished same = train(2, {"--checkpoint.resume=" + path, "--train.steps=8"});
    EXPECT_EQ(same.status, 0) << same.output;
    EXPECT_THAT(same.output, HasSubstr("nothing to do: step 8 of 8"));
  }
  EXPECT_TRUE(fs::exists(aside + "/step-00000008")) << "not the same step 8";

  const nlohmann::json line = inspect(run_folder())["line"];
  ASSERT_EQ(line.size(), 2U);
  EXPECT_EQ(line[0]["step"], 7);
  EXPECT_EQ(line[0]["is_there"], false);
  EXPECT_EQ(line[1]["step"], 8);
  const Finished text = test::run({program("mica-inspect"), run_folder()});
  EXPECT_THAT(text.output, AllOf(HasSubstr("step 7 (run "), HasSubstr("not here) > step 8 (run "), HasSubstr("set-aside-1: step 8, 12")));
}

// Manifests are UTF-8, paths need not be.
TEST_F(RunFolder, ALineThatBeganInAFolderOfAnotherEncodingGoesOn) {
  const std::string old_run = "mod\xe8le";
  ASSERT_EQ(train(1, {"--train.steps=4"}, old_run).status, 0);
  const std::string resume = "--checkpoint.resume=" + checkpoint(4, old_run);
  ASSERT_EQ(train(1, {resume, "--train.steps=6"}).status, 0);
  const Finished again = train(1, {resume, "--train.steps=7"});
  EXPECT_EQ(again.status, 0) << again.output;
  EXPECT_EQ(first_progress_step(again.output), 7) << again.output;
}

// The folder of a run may be moved: the same command, with the new path, goes on.
TEST_F(RunFolder, AMovedRunGoesOnWithItsLine) {
  ASSERT_EQ(train(2).status, 0);
  ASSERT_EQ(train(2, {"--checkpoint.resume=" + checkpoint(4), "--train.steps=6"}).status, 0);
  fs::rename(run_folder(), run_folder("moved"));
  const Finished moved = train(2, {"--checkpoint.resume=" + checkpoint(4, "moved"), "--train.steps=7"}, "moved");
  ASSERT_EQ(moved.status, 0) << moved.output;
  EXPECT_EQ(first_progress_step(moved.output), 7) << moved.output;
}

// A manifest that the file system does not give now may be the newest of the line: an older one would set it aside.
TEST_F(RunFolder, AReadThatFailsDoesNotBeginTheLineAgain) {
  ASSERT_EQ(train(2).status, 0);
  ASSERT_EQ(train(2, {"--checkpoint.resume=" + checkpoint(4), "--train.steps=8"}).status, 0);
  const std::string manifest = checkpoint(8) + "/manifest.json", sound = read_text(manifest);
  make_unreadable(manifest);
  const Finished failed = train(2, {"--checkpoint.resume=" + checkpoint(4), "--train.steps=9"});
  EXPECT_EQ(failed.status, 3) << failed.output;
  EXPECT_THAT(failed.error_lines().at(0), AllOf(HasSubstr("No such device or address"), Not(HasSubstr("resume with"))));
  fs::remove(manifest);
  write_text(manifest, sound);
  const Finished again = train(2, {"--checkpoint.resume=" + checkpoint(4), "--train.steps=9"});
  EXPECT_EQ(again.status, 0) << again.output;
  EXPECT_EQ(first_progress_step(again.output), 9);
}

// A damaged newest checkpoint does not make the same command begin the line again.
TEST_F(RunFolder, ADamagedCheckpointCostsNoMoreThanItself) {
  ASSERT_EQ(train(2, {"--train.steps=8"}).status, 0);
  const std::vector<std::string> back{"--checkpoint.resume=" + checkpoint(4), "--checkpoint.interval=1"};
  const auto until = [&](int steps) {
    std::vector<std::string> flags = back;
    flags.push_back("--train.steps=" + std::to_string(steps));
    return train(2, flags);
  };
  ASSERT_EQ(until(7).status, 0);
  damage(checkpoint(7) + "/manifest.json");
  const Finished next = until(8);
  ASSERT_EQ(next.status, 0) << next.output;
  EXPECT_EQ(first_progress_step(next.output), 7) << next.output;
  EXPECT_THAT(next.output, HasSubstr("warning: a newer checkpoint is passed over: " + checkpoint(7) + "/manifest.json"));
  EXPECT_TRUE(fs::exists(run_folder() + "/checkpoints/set-aside-2/step-00000007"));
}

// Refused or without work, a launch that would go back changes nothing.
TEST_F(RunFolder, GoingBackInVainChangesNothing) {
  ASSERT_EQ(train(2).status, 0);
  const auto before = checkpoints_of(run_folder());
  const std::string metrics = read_text(run_folder() + "/metrics.jsonl");
  const std::string back = "--checkpoint.resume=" + checkpoint(8);
  const Finished check = train(2, {back, "--check"});
  EXPECT_THAT(check.output,
              AllOf(HasSubstr("resumes from " + checkpoint(8)), HasSubstr("later checkpoints of this run (1) will be set aside")));
  EXPECT_THAT(train(2, {back, "--train.steps=8"}).output, HasSubstr("nothing to do"));
  expect_refusal(train(2, {back, "--run.seed=3"}), {"run.seed"});
  EXPECT_EQ(checkpoints_of(run_folder()), before);
  EXPECT_EQ(read_text(run_folder() + "/metrics.jsonl"), metrics);
}

// A line of another run begins in a folder of its own, once.
TEST_F(RunFolder, AnotherRunsCheckpointBeginsALine) {
  ASSERT_EQ(train(2, {"--train.steps=4"}, "first").status, 0);
  const std::vector<std::string> flags{"--checkpoint.resume=" + checkpoint(4, "first"), "--train.steps=6", "--checkpoint.interval=1"};
  ASSERT_EQ(first_progress_step(train(2, flags).output), 5);
  const nlohmann::json line = inspect(run_folder())["line"];
  ASSERT_EQ(line.size(), 3U);
  EXPECT_EQ(line[0]["step"], 4) << "the other run's";
  EXPECT_EQ(line[0]["is_there"], false);
  EXPECT_EQ(line[1]["step"], 5);
  fs::remove_all(checkpoint(6));
  EXPECT_EQ(first_progress_step(train(2, flags).output), 6) << "not from the other run's again";
  // Rows and checkpoints that were there are no part of it.
  ASSERT_EQ(train(2, {"--checkpoint.interval=4"}, "used").status, 0);
  ASSERT_EQ(train(2, flags, "used").status, 0);
  ASSERT_EQ(step_lines(run_folder("used")).size(), 2U);
  EXPECT_EQ(step_lines(run_folder("used"))[0].step, 5);
  EXPECT_TRUE(fs::exists(run_folder("used") + "/checkpoints/set-aside-1/step-00000004"));
  EXPECT_EQ(checkpoints_of(run_folder("first")).size(), 1U);
}

// Without train.global_batch a resume keeps the batch that the run has, whatever the ranks: the losses go on as they were.
TEST_F(RunFolder, TheBatchBelongsToTheRun) {
  ASSERT_EQ(train(4).status, 0);  // 8 sequences a step
  const std::vector<StepLine> expected = step_lines(run_folder());
  const auto copy_until = [&](const std::string& name, int step) {
    fs::create_directories(run_folder(name) + "/checkpoints");
    fs::copy(checkpoint(step), checkpoint(step, name), fs::copy_options::recursive);
  };
  for (const auto& [ranks, flag] : std::vector<std::pair<int, std::string>>{
           {2, "--train.micro_batch=2"}, {1, "--train.micro_batch=8"}, {4, "--train.global_batch=8"}, {3, "--train.micro_batch=4"}}) {
    SCOPED_TRACE(ranks);
    const std::string name = "on_" + std::to_string(ranks);
    copy_until(name, 8);
    const Finished run = train(ranks, {flag}, name);
    if (ranks == 3) {
      expect_refusal(run,
                     {"step-00000008 was saved with 8 sequences per step", "which do not divide among 3 ranks; keep it on 2 or 4 ranks"});
      continue;
    }
    ASSERT_EQ(run.status, 0) << run.output;
    const std::vector<StepLine> lines = step_lines(run_folder(name));
    ASSERT_EQ(lines.size(), 4U);
    for (std::size_t i = 0; i < lines.size(); ++i) EXPECT_NEAR(lines[i].loss, expected[8 + i].loss, 1e-5);
    const nlohmann::json end = inspect(checkpoint(12, name));
    EXPECT_EQ(end["global_batch"], 8);
    EXPECT_EQ(end["sequences"], 96);
    EXPECT_EQ(end["tokens"], 96 * 32);
    EXPECT_THAT(read_text(run_folder(name) + "/config.resolved.cfg"), HasSubstr("global_batch = 8"));
  }
  // Another batch only when asked for: then it goes on with the first sequence that was not seen.
  copy_until("other", 8);
  const std::vector<std::string> other{"--train.global_batch=4", "--train.micro_batch=1", "--train.steps=10"};
  expect_refusal(train(4, other, "other"), {"train.global_batch = 8", "has 4", "--checkpoint.allow_data_change=true"});
  std::vector<std::string> allowed = other;
  allowed.emplace_back("--checkpoint.allow_data_change=true");
  ASSERT_EQ(train(4, allowed, "other").status, 0);
  EXPECT_EQ(inspect(checkpoint(10, "other"))["sequences"], 64 + 2 * 4);
  EXPECT_EQ(inspect(checkpoint(10, "other"))["tokens"], (64 + 2 * 4) * 32);
  copy_until("shorter", 8);
  for (const char* flag : {"--train.seq_len=16", "--train.steps=9"}) allowed.emplace_back(flag);
  const Finished shorter = train(4, allowed, "shorter");
  ASSERT_EQ(shorter.status, 0) << shorter.output;
  EXPECT_EQ(inspect(checkpoint(9, "shorter"))["sequences"], 64 * 2 + 4) << "of half the length: twice as many were seen";
}

TEST_F(RunFolder, OtherTokensUnderTheSameNameAreRefused) {
  ASSERT_EQ(train(2, {"--train.steps=4"}).status, 0);
  overwrite_token(folder_ / "tokens.bin", 11'111, 99);
  expect_refusal(train(2, {"--train.steps=5"}), {"was trained on other tokens", "20000 tokens in 1 file", "allow_data_change"});
  const Finished allowed = train(2, {"--train.steps=5", "--checkpoint.allow_data_change=true"});
  EXPECT_EQ(allowed.status, 0) << allowed.output;
  EXPECT_THAT(allowed.output, HasSubstr("changed since the checkpoint: the tokens of data.train"));
  // The same tokens elsewhere are the same data.
  fs::rename(folder_ / "tokens.bin", folder_ / "moved.bin");
  const Finished moved = train(2, {"--train.steps=6", "--data.train=" + (folder_ / "moved.bin")});
  EXPECT_EQ(moved.status, 0) << moved.output;
}

// The same sequences on any number of ranks and with any micro-batch: all of them, some, more than there are.
TEST_F(RunFolder, ValidationLossIsANumberOfTheModelAndTheData) {
  const auto evaluate = [&](int num_ranks, std::vector<std::string> flags) {
    flags.insert(flags.end(), {"--train.steps=1", "--optim.lr=0", "--checkpoint.optimizer=false"});
    fs::remove_all(run_folder("eval"));
    const Finished run = train(num_ranks, flags, "eval");
    EXPECT_EQ(run.status, 0) << run.output;
    return rows("eval", "eval").at(0)["val_loss"].get<double>();
  };
  for (const std::string batches : {"--train.eval_batches=2", "--train.eval_batches=0"}) {
    const double one = evaluate(1, {batches, "--train.deterministic=true"});
    EXPECT_EQ(one, evaluate(2, {batches, "--train.deterministic=true", "--train.micro_batch=3"}));
    EXPECT_EQ(one, evaluate(3, {batches, "--train.deterministic=true", "--fsdp.strategy=shard_grad_op"}));
    EXPECT_EQ(one, evaluate(4, {batches, "--train.deterministic=true", "--fsdp.strategy=hybrid_shard", "--mesh.shard_size=2"}));
    EXPECT_NEAR(one, evaluate(3, {batches, "--train.micro_batch=5"}), 1e-5);
  }
  const double all = evaluate(1, {"--train.eval_batches=0"});
  EXPECT_EQ(all, evaluate(1, {"--train.eval_batches=1000"})) << "each sequence once";
  EXPECT_NE(all, evaluate(1, {"--train.eval_batches=2"}));
}

// Rank 0 says where the run goes on; a rank that cannot see it names itself.
TEST_F(RunFolder, ARankThatCannotSeeTheFolderSaysSo) {
  ASSERT_EQ(train(2, {"--train.steps=4"}).status, 0);
  fs::create_directory(folder_ / "elsewhere");
  const std::vector<std::string> rank{program("mica-train"), folder_ / "run.cfg", "--run.dir=run"};
  std::vector<std::string> both{"mpirun", "-np", "1", "-wdir", folder_.path()};
  both.insert(both.end(), rank.begin(), rank.end());
  both.insert(both.end(), {":", "-np", "1", "-wdir", folder_ / "elsewhere"});
  both.insert(both.end(), rank.begin(), rank.end());
  expect_refusal(test::run(both), {"run folder run is not one folder for all ranks: on rank 1 (",
                                   "No such file or directory (working directory", "elsewhere", "on a file system that all nodes share"});
}

TEST_F(RunFolder, ARankThatCannotSeeTheCheckpointSaysSo) {
  ASSERT_EQ(train(2, {"--train.steps=4"}).status, 0);
  fs::create_directory(folder_ / "elsewhere");
  const std::vector<std::string> rank{program("mica-train"), folder_ / "run.cfg", "--run.dir=" + run_folder("other"), "--train.steps=6",
                                      "--checkpoint.resume=run/checkpoints/step-00000004"};
  std::vector<std::string> both{"mpirun", "-np", "1", "-wdir", folder_.path()};
  both.insert(both.end(), rank.begin(), rank.end());
  both.insert(both.end(), {":", "-np", "1", "-wdir", folder_ / "elsewhere"});
  both.insert(both.end(), rank.begin(), rank.end());
  expect_refusal(test::run(both),
                 {"rank 1: ", "run/checkpoints/step-00000004/manifest.json cannot be read (no such file; working directory", "elsewhere",
                  "but rank 0 resumes from it"});
}

TEST_F(RunFolder, LogHoldsTheStartAndTheEnd) {
  ASSERT_EQ(train(2, {"--train.steps=4"}).status, 0);
  expect_refusal(train(2, {"--train.steps=5", "--run.seed=2"}), {"run.seed"});
  const std::string log = read_text(run_folder() + "/log.txt");
  EXPECT_THAT(log, AllOf(HasSubstr("mica-train 0.2.0 (commit "), HasSubstr("batch    4 sequences a step"), HasSubstr("memory plan"),
                         HasSubstr("step      4/4"), HasSubstr("mica: error: "), HasSubstr("run.seed = 1, but this run has 2")));
}

// log.trace: a launch that begins or ends inside the range traces its part, and one that does nothing of it says so.
TEST_F(RunFolder, TracesThePartOfTheRangeThatALaunchDoes) {
  const std::string trace = run_folder() + "/trace-rank1.json";
  const Finished first = train(2, {"--train.steps=4", "--log.trace=3-6"});
  ASSERT_EQ(first.status, 0) << first.output;
  EXPECT_THAT(first.output, HasSubstr("traced steps 3 to 4"));
  EXPECT_TRUE(fs::exists(trace));
  fs::remove(trace);
  const Finished second = train(2, {"--train.steps=8", "--log.trace=3-6"});
  EXPECT_THAT(second.output, HasSubstr("traced steps 5 to 6"));
  EXPECT_TRUE(fs::exists(trace));
  fs::remove(trace);
  EXPECT_THAT(train(2, {"--train.steps=9", "--log.trace=3-6"}).output, HasSubstr("those steps were done before this launch"));
  EXPECT_THAT(train(2, {"--train.steps=10", "--log.trace=20"}).output, HasSubstr("the run ended after step 10"));
  EXPECT_FALSE(fs::exists(trace));
}

TEST_F(RunFolder, ATraceThatCannotBeWrittenEndsNoRun) {
  ASSERT_EQ(train(2, {"--train.steps=2"}).status, 0);
  fs::create_directory(run_folder() + "/trace-rank1.json.tmp");
  const Finished traced = train(2, {"--train.steps=4", "--log.trace=3-3"});
  EXPECT_EQ(traced.status, 0) << traced.output;
  const std::string warning = "training goes on without this trace";
  EXPECT_THAT(traced.output, AllOf(HasSubstr("trace-rank1.json"), HasSubstr(warning)));
  EXPECT_EQ(traced.output.find(warning), traced.output.rfind(warning)) << "it is not tried again";
  EXPECT_TRUE(fs::exists(run_folder() + "/trace-rank0.json"));
}

// A step's communication is its own: not that of the evaluation and the save before it.
TEST_F(RunFolder, CommunicationIsCountedWithItsSteps) {
  ASSERT_EQ(train(2, {"--train.eval_interval=1", "--train.eval_batches=0", "--checkpoint.interval=1"}).status, 0);
  ASSERT_EQ(rows("step").size(), 12U);
  for (const nlohmann::json& row : rows("step")) EXPECT_LE(row["comm_wait_ms"], row["step_ms"]) << row;
}

}  // namespace
}  // namespace mica::test
