// SPDX-License-Identifier: Apache-2.0
// Jobs of scripts/launch/slurm-cpu.sbatch that are stopped and go on, under a real Slurm over 2 nodes; runs on the head of that cluster
// (CMakeLists.txt).

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
using ::testing::AnyOf;
using ::testing::HasSubstr;

/// One launch was stopped, the next goes on at the step after its last.
void expect_one_restart(const SlurmTraining& training, const SlurmJob& job) {
  const std::vector<std::int64_t> resumed = training.resumed_after();
  ASSERT_EQ(resumed.size(), 1u) << job.story(training.output_file());
  EXPECT_TRUE(training.reaches(resumed[0] + 3)) << job.story(training.output_file());
  EXPECT_EQ(training.num_launches(), 2) << "the job's output is appended to";
  EXPECT_EQ(job.field("Restarts"), "1");
  expect_each_step_once(training.run_folder());
}

class Slurm : public ::testing::TestWithParam<const char*> {
 protected:
  [[nodiscard]] std::map<std::string, std::string> environment() const {
    std::map<std::string, std::string> all = SlurmTraining::environment();
    all["MICA_LAUNCHER"] = GetParam();
    return all;
  }
  SlurmTraining training_;
};

TEST_P(Slurm, ASignalSavesAndTheJobGoesOnAtTheNextStep) {
  const SlurmJob job(training_.command({}, {}), environment());
  ASSERT_TRUE(training_.reaches(20)) << job.story(training_.output_file());
  EXPECT_EQ(run({"scancel", "--batch", "--signal=USR1", job.id()}).status, 0);
  ASSERT_TRUE(eventually(120, [&] { return training_.resumed_after().size() == 1; })) << job.story(training_.output_file());
  expect_one_restart(training_, job);
}

// With mpirun nothing can be saved: Slurm ends Open MPI's daemons, and mpirun gives up.
TEST_P(Slurm, ACancelledJobSavesWithSrunAndStaysCancelled) {
  const SlurmJob job(training_.command({}, {}), environment());
  ASSERT_TRUE(training_.reaches(20)) << job.story(training_.output_file());
  EXPECT_EQ(run({"scancel", job.id()}).status, 0);
  EXPECT_EQ(job.end(60), "CANCELLED") << job.story(training_.output_file());
  EXPECT_EQ(job.field("Restarts"), "0");
  if (std::string(GetParam()) == "srun") {
    EXPECT_EQ(checkpoints_of(training_.run_folder()).size(), 1u) << job.story(training_.output_file());
  }
}

TEST_P(Slurm, AJobThatHasLostANodeGoesOn) {
  const SlurmJob job(training_.command({}, {"--checkpoint.interval=10"}), environment());
  ASSERT_TRUE(training_.reaches(40)) << job.story(training_.output_file());
  (void)on_cluster({"crash", "node1"});
  EXPECT_TRUE(eventually(120, [&] { return job.field("Restarts") == "1"; })) << job.story(training_.output_file());
  (void)on_cluster({"boot", "node1"});
  ASSERT_TRUE(eventually(120, [&] { return training_.resumed_after().size() == 1; })) << job.story(training_.output_file());
  EXPECT_EQ(training_.resumed_after()[0] % 10, 0);
  expect_one_restart(training_, job);
}

TEST_P(Slurm, AKilledRankEndsTheJobWithItsStatus) {
  const SlurmJob job(training_.command({}, {"--checkpoint.interval=10"}), environment());
  ASSERT_TRUE(training_.reaches(20)) << job.story(training_.output_file());
  EXPECT_EQ(run(cluster({"on", "node1", "bash", "-c", "kill -KILL $(pgrep -n mica-train)"})).status, 0);
  EXPECT_EQ(job.end(120), "FAILED") << job.story(training_.output_file());
  // The killed rank's status, or that of the others, which end with 3: what the launcher hears of last.
  EXPECT_THAT(job.field("ExitCode"), AnyOf("137:0", "3:0"));
  EXPECT_EQ(job.field("Restarts"), "0") << "all nodes answer";
}

INSTANTIATE_TEST_SUITE_P(With, Slurm, ::testing::Values("srun", "mpirun"), [](const auto& info) { return std::string(info.param); });

// Of the first launch, rank 0 gets SIGSEGV while it waits for the others in MPI_Init.
TEST(SlurmScript, ACrashInMpiInitIsFollowedByOneMoreStart) {
  const SlurmTraining training;
  fs::create_directory(training.file("bin"));
  write_text(training.file("bin/mica-train"),
             "#!/bin/bash\n"
             "launched=" +
                 training.file("launched-") +
                 "$SLURM_PROCID\n"
                 "if [[ $1 != --version && ! -e $launched ]]; then\n"
                 "  touch $launched\n"
                 "  if [[ $SLURM_PROCID == 0 ]]; then (sleep 1; kill -SEGV $$) & else sleep 3; fi\n"
                 "fi\n"
                 "exec " +
                 test::program("mica-train") + " \"$@\"\n");
  fs::permissions(training.file("bin/mica-train"), fs::perms::owner_all);
  std::map<std::string, std::string> environment = SlurmTraining::environment();
  environment["MICA_BIN"] = training.file("bin");
  const SlurmJob job(training.command({}, {"--train.steps=5"}), environment);
  EXPECT_EQ(job.end(120), "COMPLETED") << job.story(training.output_file());
  EXPECT_EQ(job.field("Restarts"), "0") << "it is the same job";
  EXPECT_EQ(training.num_launches(), 1) << "the first did not come out of MPI_Init";
  EXPECT_THAT(read_text(training.output_file()), HasSubstr("starting once more"));
}

// Its script is gone with it.
TEST(SlurmScript, AJobThatHasLostItsFirstNodeGoesOn) {
  const SlurmTraining training;
  const SlurmJob job(training.command({}, {"--checkpoint.interval=10"}), SlurmTraining::environment());
  ASSERT_TRUE(training.reaches(40)) << job.story(training.output_file());
  (void)on_cluster({"crash", "node0"});
  EXPECT_TRUE(eventually(120, [&] { return job.field("Restarts") == "1"; })) << job.story(training.output_file());
  (void)on_cluster({"boot", "node0"});
  ASSERT_TRUE(eventually(180, [&] { return training.resumed_after().size() == 1; })) << job.story(training.output_file());
  expect_one_restart(training, job);
}

}  // namespace
}  // namespace mica::test
