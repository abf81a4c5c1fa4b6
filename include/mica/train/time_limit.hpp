// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <limits>
#include <string>

namespace mica::train {

/// When a launch has to have ended: train.max_hours after its start, or when its Slurm job ends, whichever is earlier; and how
/// long before that its last save must begin. Rank 0 alone measures and decides. It is given the time and reads no clock.
class TimeLimit {
 public:
  using Seconds = std::chrono::duration<double>;
  /// The end of the ranks, of their launcher, and a batch script's call of `scontrol requeue`.
  static constexpr Seconds kEndOfJob{5};

  /// No limit.
  TimeLimit() = default;
  /// @param max_hours            0: no limit
  /// @param slurm_job_end_time   the variable SLURM_JOB_END_TIME, seconds since the epoch; null: not set
  /// @param now                  by the host's clock, when the launch starts
  /// @throws ConfigError if the variable is no number
  TimeLimit(double max_hours, const char* slurm_job_end_time, std::chrono::system_clock::time_point now);

  [[nodiscard]] bool is_set() const { return left_at_start_.count() < std::numeric_limits<double>::infinity(); }
  /// "train.max_hours", "SLURM_JOB_END_TIME"; empty without a limit.
  [[nodiscard]] const std::string& reason() const { return reason_; }
  /// One line for the log: when, how long from the start, and why. Empty without a limit.
  [[nodiscard]] std::string description() const;
  /// What is wrong with the variable, if it is not obeyed: it names a time in the past. Empty: nothing.
  [[nodiscard]] const std::string& warning() const { return warning_; }

  /// The longest time between two questions whether to stop, so far.
  void note_steps(Seconds time);
  void note_save(Seconds time);
  /// Of a save, until there was one.
  void estimate_save(Seconds time) { estimated_save_ = time; }
  /// What is kept free: a quarter more than the longest steps and saves so far, and kEndOfJob. @param num_saves  still to be done
  [[nodiscard]] Seconds reserve(int num_saves) const;
  /// Whether the last save must begin now. @param since_start  of the launch
  [[nodiscard]] bool is_near(Seconds since_start, int num_saves) const { return since_start + reserve(num_saves) >= left_at_start_; }
  [[nodiscard]] Seconds left(Seconds since_start) const { return left_at_start_ - since_start; }

 private:
  Seconds left_at_start_{std::numeric_limits<double>::infinity()};
  std::chrono::system_clock::time_point end_;
  std::string reason_, warning_;
  Seconds longest_steps_{0}, longest_save_{0}, estimated_save_{0};
};

}  // namespace mica::train
