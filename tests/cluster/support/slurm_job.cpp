// SPDX-License-Identifier: Apache-2.0
#include "cluster/support/slurm_job.hpp"

#include <regex>

#include <gtest/gtest.h>

#include "cluster/support/nodes.hpp"
#include "fault/support/training.hpp"

namespace mica::test {

SlurmJob::SlurmJob(const std::vector<std::string>& options, const std::map<std::string, std::string>& environment) {
  std::vector<std::string> command{"sbatch", "--parsable"};
  command.insert(command.end(), options.begin(), options.end());
  const Finished seen = Child(command, environment).wait();
  EXPECT_EQ(seen.status, 0) << seen.output;
  id_ = seen.output.substr(0, seen.output.find('\n'));
}

SlurmJob::~SlurmJob() {
  (void)run({"scancel", id_});
  EXPECT_TRUE(eventually(60, [&] { return run({"squeue", "--noheader", "--format=%F."}).output.find(id_ + ".") == std::string::npos; }));
}

std::string SlurmJob::field(const std::string& name, int task) const {
  const std::string job = task < 0 ? id_ : id_ + "_" + std::to_string(task);
  const Finished shown = run({"scontrol", "--oneliner", "show", "job", job});
  std::smatch match;
  return std::regex_search(shown.output, match, std::regex("(?:^| )" + name + "=(\\S*)")) ? match[1].str() : shown.output;
}

std::string SlurmJob::end(double limit_s, int task) const {
  std::string state;
  (void)eventually(limit_s, [&] {
    state = field("JobState", task);
    return state != "PENDING" && state != "RUNNING" && state != "COMPLETING";
  });
  return state;
}

std::string SlurmJob::story(const std::string& output_file) const {
  return "== the job's output\n" + read_text(output_file) + "\n== the job\n" + run({"scontrol", "show", "job", id_}).output +
         "\n== slurmctld\n" + read_text("/run/mica-cluster/slurm/log/slurmctld.log");
}

}  // namespace mica::test
