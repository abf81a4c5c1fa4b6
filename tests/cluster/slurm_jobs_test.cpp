// SPDX-License-Identifier: Apache-2.0
// Time limits, ends, mistakes and arrays of jobs of scripts/launch/slurm-cpu.sbatch, under a real Slurm over 2 nodes; and mpirun over a
// hostfile. Runs on the head of that cluster (CMakeLists.txt).

#include <cstdlib>
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cluster/support/nodes.hpp"
#include "cluster/support/slurm_training.hpp"
#include "fault/support/training.hpp"
#include "support/paths.hpp"

namespace mica::test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class SlurmJobs : public ::testing::Test {
 protected:
  SlurmTraining training_;
};

// Slurm's own signal: so long before the limit that it comes at once. Slurm looks every 30 s.
TEST_F(SlurmJobs, BeforeTheTimeLimitARunSavesAndIsQueuedAgain) {
  const SlurmJob job(training_.command({"--time=10", "--signal=B:USR1@600"}, {}), SlurmTraining::environment());
  ASSERT_TRUE(eventually(180, [&] { return training_.resumed_after().size() == 1; })) << job.story(training_.output_file());
  EXPECT_THAT(read_text(training_.output_file()), HasSubstr("saved and stopped: the job is queued again"));
  expect_each_step_once(training_.run_folder());
}

TEST_F(SlurmJobs, ARunThatIsDoneEndsItsJob) {
  const SlurmJob job(training_.command({}, {"--train.steps=5", "--fsdp.strategy=hybrid_shard"}), SlurmTraining::environment());
  EXPECT_EQ(job.end(120), "COMPLETED") << job.story(training_.output_file());
  EXPECT_EQ(training_.last_step(), 5);
  EXPECT_THAT(read_text(training_.output_file()), HasSubstr("shard groups: {0,1} on node0; {2,3} on node1"));
}

TEST_F(SlurmJobs, AMistakeIsNotMadeAgain) {
  for (const std::string flag : {"--train.stpes=5", "--data.train=nowhere.bin"}) {
    const SlurmJob job(training_.command({}, {flag}), SlurmTraining::environment());
    EXPECT_EQ(job.end(120), "FAILED") << job.story(training_.output_file());
    EXPECT_EQ(job.field("ExitCode"), "2:0") << flag;
    EXPECT_EQ(job.field("Restarts"), "0");
  }
  EXPECT_THAT(read_text(training_.output_file()), AllOf(HasSubstr("mica: error: "), HasSubstr("train.stpes"), HasSubstr("nowhere.bin")));
  std::map<std::string, std::string> elsewhere{{"MICA_BIN", training_.file("nowhere")}};
  const SlurmJob without_programs(training_.command({}, {}), elsewhere);
  EXPECT_EQ(without_programs.end(120), "FAILED");
  EXPECT_EQ(without_programs.field("ExitCode"), "2:0");
  EXPECT_THAT(read_text(training_.output_file()), HasSubstr("mica: error: no mica-train in " + training_.file("nowhere")));
}

TEST_F(SlurmJobs, AJobThatMayNotBeRequeuedSaysHowToGoOn) {
  {
    const SlurmJob job(training_.command({"--no-requeue"}, {}), SlurmTraining::environment());
    ASSERT_TRUE(training_.reaches(20)) << job.story(training_.output_file());
    EXPECT_EQ(run({"scancel", "--batch", "--signal=USR1", job.id()}).status, 0);
    EXPECT_EQ(job.end(60), "FAILED") << job.story(training_.output_file());
    EXPECT_EQ(job.field("ExitCode"), "75:0");
    EXPECT_THAT(read_text(training_.output_file()), HasSubstr("cannot be queued again here: submit the same command"));
  }
  const std::int64_t saved = training_.last_step();
  const SlurmJob again(training_.command({}, {"--train.steps=" + std::to_string(saved + 5)}), SlurmTraining::environment());
  EXPECT_EQ(again.end(120), "COMPLETED") << again.story(training_.output_file());
  EXPECT_THAT(training_.resumed_after(), ElementsAre(saved));
  expect_each_step_once(training_.run_folder());
}

// --array=0-1%1: one after the other, as where jobs cannot be requeued.
TEST_F(SlurmJobs, TheTasksOfAnArrayInTurnGoOnWithOneRun) {
  const SlurmJob job(training_.command({"--array=0-1%1", "--no-requeue"}, {"--train.steps=30", "--train.max_hours=1e-9"}),
                     SlurmTraining::environment());
  EXPECT_EQ(job.end(120, 1), "FAILED") << job.story(training_.output_file());
  EXPECT_EQ(job.field("ExitCode", 0), "75:0");
  EXPECT_EQ(job.field("ExitCode", 1), "75:0");
  EXPECT_THAT(training_.resumed_after(), ElementsAre(1));
  expect_each_step_once(training_.run_folder());
}

TEST_F(SlurmJobs, TheTasksOfAnArrayAtOnceDoNotShareAFolder) {
  const SlurmJob job(training_.command({"--array=0-1", "--nodes=1"}, {}), SlurmTraining::environment());
  ASSERT_TRUE(eventually(120, [&] { return job.field("JobState", 0) == "FAILED" || job.field("JobState", 1) == "FAILED"; }))
      << job.story(training_.output_file());
  const int refused = job.field("JobState", 0) == "FAILED" ? 0 : 1;
  EXPECT_EQ(job.field("ExitCode", refused), "2:0");
  EXPECT_EQ(job.field("JobState", 1 - refused), "RUNNING");
  EXPECT_THAT(read_text(training_.output_file()), HasSubstr("is in use by another job"));
}

// Slurm sets the task's number when the job runs: a shell has to put it in then.
TEST_F(SlurmJobs, TheTasksOfAnArrayTrainInFoldersOfTheirOwn) {
  const std::string script = test::source_folder() + "/scripts/launch/slurm-cpu.sbatch";
  const SlurmJob job(
      {"--array=0-1", "--nodes=1", "--ntasks-per-node=2", "--cpus-per-task=1", "--output=" + training_.output_file(), "--open-mode=append",
       "--wrap=exec " + script + " " + training_.file("run.cfg") +
           " --train.steps=5 --run.seed=$((SLURM_ARRAY_TASK_ID + 1)) --run.dir=" + training_.run_folder() + "-$SLURM_ARRAY_TASK_ID"},
      SlurmTraining::environment());
  for (const int task : {0, 1}) {
    EXPECT_EQ(job.end(120, task), "COMPLETED") << job.story(training_.output_file());
    EXPECT_EQ(step_lines(training_.run_folder() + "-" + std::to_string(task)).size(), 5u);
  }
}

// One task has the array's id as its own.
TEST_F(SlurmJobs, OnlyTheTaskOfAnArrayThatStoppedIsQueuedAgain) {
  const std::string script = test::source_folder() + "/scripts/launch/slurm-cpu.sbatch";
  const auto folder = [&](int task) { return training_.run_folder() + "-" + std::to_string(task); };
  const SlurmJob job(
      {"--array=0-1", "--nodes=1", "--ntasks-per-node=2", "--cpus-per-task=1", "--requeue", "--output=" + training_.output_file(),
       "--open-mode=append",
       "--wrap=exec " + script + " " + training_.file("run.cfg") + " --run.dir=" + training_.run_folder() + "-$SLURM_ARRAY_TASK_ID"},
      SlurmTraining::environment());
  ASSERT_TRUE(eventually(120, [&] { return step_lines(folder(0)).size() >= 3 && step_lines(folder(1)).size() >= 3; }))
      << job.story(training_.output_file());
  const int stopped = job.field("JobId", 0) == job.id() ? 0 : 1;
  ASSERT_EQ(job.field("JobId", stopped), job.id());
  EXPECT_EQ(run({"scancel", "--batch", "--signal=USR1", job.id() + "_" + std::to_string(stopped)}).status, 0);
  ASSERT_TRUE(eventually(60, [&] { return job.field("Restarts", stopped) == "1"; })) << job.story(training_.output_file());
  EXPECT_EQ(job.field("JobState", 1 - stopped), "RUNNING") << job.story(training_.output_file());
  EXPECT_EQ(job.field("Restarts", 1 - stopped), "0");
}

// Only the list of plugins is made up.
TEST_F(SlurmJobs, WithoutPmixTheJobStartsWithMpirun) {
  const std::string found = run({"bash", "-c", "command -v srun"}).output;
  const std::string real = found.substr(0, found.find('\n'));
  fs::create_directory(training_.file("bin"));
  write_text(training_.file("bin/srun"),
             "#!/bin/bash\n"
             "[ \"$*\" != --mpi=list ] || { printf 'MPI plugin types are...\\n\\tnone\\n\\tpmi2\\n\\tcray_shasta\\n'; exit; }\n"
             "exec " +
                 real + " \"$@\"\n");
  fs::permissions(training_.file("bin/srun"), fs::perms::owner_all);
  std::map<std::string, std::string> environment = SlurmTraining::environment();
  environment["PATH"] = training_.file("bin") + ":" + std::getenv("PATH");
  const SlurmJob job(training_.command({}, {"--train.steps=5"}), environment);
  EXPECT_EQ(job.end(120), "COMPLETED") << job.story(training_.output_file());
  EXPECT_THAT(read_text(training_.output_file()), HasSubstr("starting with mpirun"));
  EXPECT_THAT(read_text(training_.output_file()), HasSubstr("{0,1,2,3} on node0, node1"));
}

// Outside of Slurm, over a hostfile: mpirun notices, and the script ends.
TEST_F(SlurmJobs, MpirunEndsWhenAHostIsLost) {
  write_text(training_.file("hosts"), "node0 slots=2\nnode1 slots=2\n");
  std::map<std::string, std::string> environment = SlurmTraining::environment();
  environment["HOSTFILE"] = training_.file("hosts");
  Child child({test::source_folder() + "/scripts/launch/mpirun-cpu.sh", training_.file("run.cfg"), "--run.dir=" + training_.run_folder()},
              environment);
  ASSERT_TRUE(training_.reaches(20)) << child.wait(1).output;
  (void)on_cluster({"crash", "node1"});
  const Finished seen = child.wait(120);
  (void)on_cluster({"boot", "node1"});
  EXPECT_FALSE(seen.is_timed_out);
  EXPECT_NE(seen.status, 0);
  EXPECT_NE(seen.status, 75) << seen.output;
}

}  // namespace
}  // namespace mica::test
