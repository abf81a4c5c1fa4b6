// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cluster/support/slurm_job.hpp"
#include "support/temporary_folder.hpp"

namespace mica::test {

/// A small run that scripts/launch/slurm-cpu.sbatch trains on 2 nodes with 2 ranks each, in a folder that all nodes see.
class SlurmTraining {
 public:
  SlurmTraining();
  [[nodiscard]] std::string run_folder() const { return folder_ / "run"; }
  [[nodiscard]] std::string output_file() const { return folder_ / "output"; }
  [[nodiscard]] std::string file(const std::string& name) const { return folder_ / name; }
  /// sbatch's words, and what the batch script is to find in its environment.
  [[nodiscard]] std::vector<std::string> command(const std::vector<std::string>& options, const std::vector<std::string>& flags) const;
  [[nodiscard]] static std::map<std::string, std::string> environment();

  [[nodiscard]] std::int64_t last_step() const;
  /// Whether it comes to this step.
  [[nodiscard]] bool reaches(std::int64_t step, double limit_s = 120) const;
  /// The steps after which launches have resumed, from log.txt.
  [[nodiscard]] std::vector<std::int64_t> resumed_after() const;
  /// Launches that the output file tells of.
  [[nodiscard]] int num_launches() const;

 private:
  TemporaryFolder folder_;
};

}  // namespace mica::test
