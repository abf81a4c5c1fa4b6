// SPDX-License-Identifier: Apache-2.0
// A run that jobs of a better partition preempt, again and again: each time it saves, is requeued, and goes on at the next step; in
// the end it has the parameters of a run that nobody disturbed. Under a real Slurm over 2 nodes (CMakeLists.txt).
//   MICA_CYCLES=<n>  preemptions (5)

#include <cstdio>

#include <gtest/gtest.h>

#include "cluster/support/nodes.hpp"
#include "cluster/support/slurm_training.hpp"
#include "fault/support/training.hpp"
#include "support/environment_number.hpp"

namespace mica::test {
namespace {

int num_cycles() { return static_cast<int>(environment_number("MICA_CYCLES", 5)); }

TEST(Preempted, ARunEndsWithTheBitsOfOneThatNobodyDisturbed) {
  const SlurmTraining training;
  const auto preempt = [&] {
    const SlurmJob urgent({"--partition=urgent", "--nodes=2", "--ntasks-per-node=2", "--output=/dev/null", "--wrap=true"});
    EXPECT_EQ(urgent.end(120), "COMPLETED");
  };
  {
    const SlurmJob job(training.command({}, {}), SlurmTraining::environment());
    for (int cycle = 1; cycle <= num_cycles(); ++cycle) {
      ASSERT_TRUE(training.reaches(training.last_step() + 10)) << job.story(training.output_file());
      preempt();
      ASSERT_TRUE(eventually(180, [&] { return static_cast<int>(training.resumed_after().size()) == cycle; }))
          << "cycle " << cycle << "\n"
          << job.story(training.output_file());
      EXPECT_EQ(job.field("Restarts"), std::to_string(cycle));
    }
    EXPECT_EQ(run({"scancel", job.id()}).status, 0);
    EXPECT_EQ(job.end(120), "CANCELLED");
  }
  // No step was done twice, which would have moved the parameters of the checkpoint that it began with.
  expect_each_step_once(training.run_folder());
  const std::vector<std::int64_t> resumed = training.resumed_after();
  for (std::size_t i = 1; i < resumed.size(); ++i) EXPECT_GT(resumed[i], resumed[i - 1]) << "a cycle without a step";

  const std::string steps = "--train.steps=" + std::to_string(training.last_step() + 5);
  const SlurmJob rest(training.command({}, {steps}), SlurmTraining::environment());
  EXPECT_EQ(rest.end(300), "COMPLETED") << rest.story(training.output_file());
  const std::string undisturbed = training.file("undisturbed");
  const double limit_s = 300 + 0.1 * static_cast<double>(training.last_step());  // tens of thousands after a hundred cycles
  (void)on_cluster({"mpirun", "2", program("mica-train"), training.file("run.cfg"), "--run.dir=" + undisturbed, steps}, limit_s);
  const Finished compared = run({program("mica-inspect"), "diff", training.run_folder(), undisturbed});
  EXPECT_EQ(compared.status, 0) << compared.output;
  EXPECT_EQ(step_lines(training.run_folder()), step_lines(undisturbed));
  std::printf("%d preemptions in %ld steps\n", num_cycles(), static_cast<long>(training.last_step()));
}

}  // namespace
}  // namespace mica::test
