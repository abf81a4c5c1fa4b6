// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <limits>
#include <string>

namespace mica::train {

/// When a launch must end: train.max_hours after its start or when its Slurm job ends, whichever is earlier; and how long before that its
/// last save must begin. Only rank 0 measures and decides. Callers pass the time; this class reads no clock.
class TimeLimit {
 public:
  using Seconds = std::chrono::duration<double>;
  /// Kept for the exit of the ranks and the launcher, and for the batch script's `scontrol requeue`.
  static constexpr Seconds kEndOfJob{5};

  /// No limit.
  TimeLimit() = default;
  /// @param max_hours            0: no limit
  /// @param slurm_job_end_time   the variable SLURM_JOB_END_TIME, seconds since the epoch; null: not set
  /// @param start                of the launch, by the host's clock
  /// @throws ConfigError if the variable is not a number
  TimeLimit(double max_hours, const char* slurm_job_end_time, std::chrono::system_clock::time_point start);

  [[nodiscard]] bool is_set() const { return left_at_start_.count() < std::numeric_limits<double>::infinity(); }
  /// Why a run stops now: the time left, and reserve(). @param since_start  of the launch
  [[nodiscard]] std::string reason_to_stop(Seconds since_start, int num_saves) const;
  /// One line for the log: when, how long until then, and why. Empty without a limit. @param since_start  of the launch
  [[nodiscard]] std::string description(Seconds since_start) const;
  /// Why the variable is ignored, if it is: it names a time in the past. Empty: it is not ignored.
  [[nodiscard]] const std::string& warning() const { return warning_; }

  /// Records the time between two checks whether to stop; the longest counts.
  void note_steps(Seconds time);
  void note_save(Seconds time);
  /// The time of a save, until one was measured.
  void estimate_save(Seconds time) { estimated_save_ = time; }
  /// The time kept free at the end: 1.25 times the longest steps and saves so far, plus kEndOfJob. @param num_saves  still to be done
  [[nodiscard]] Seconds reserve(int num_saves) const;
  /// Whether the last save must begin now. @param since_start  of the launch
  [[nodiscard]] bool is_near(Seconds since_start, int num_saves) const { return since_start + reserve(num_saves) >= left_at_start_; }
  [[nodiscard]] Seconds left(Seconds since_start) const { return left_at_start_ - since_start; }

 private:
  Seconds left_at_start_{std::numeric_limits<double>::infinity()};
  std::chrono::system_clock::time_point end_;
  std::string reason_;  // "train.max_hours", "SLURM_JOB_END_TIME"; empty without a limit
  std::string warning_;
  Seconds longest_steps_{0}, longest_save_{0}, estimated_save_{0};
};

}  // namespace mica::train
