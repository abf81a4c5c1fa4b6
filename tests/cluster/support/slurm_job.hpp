// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <vector>

namespace mica::test {

/// A job of the cluster's Slurm. It is cancelled when the test is done with it.
class SlurmJob {
 public:
  /// sbatch OPTIONS..., which must take it.
  explicit SlurmJob(const std::vector<std::string>& options, const std::map<std::string, std::string>& environment = {});
  ~SlurmJob();
  SlurmJob(const SlurmJob&) = delete;
  SlurmJob& operator=(const SlurmJob&) = delete;

  [[nodiscard]] const std::string& id() const { return id_; }
  /// A field of `scontrol show job`, for example JobState, Restarts, ExitCode. @param task  of a job array; -1: the job
  [[nodiscard]] std::string field(const std::string& name, int task = -1) const;
  /// Waits until it neither waits nor runs, and gives its JobState; what it did last when the time is up.
  [[nodiscard]] std::string end(double limit_s, int task = -1) const;
  /// What it and slurmctld said, for messages.
  [[nodiscard]] std::string story(const std::string& output_file) const;

 private:
  std::string id_;
};

}  // namespace mica::test
