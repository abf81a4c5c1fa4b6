// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "mica/core/unique_fd.hpp"

namespace mica::train {

/// One step's figures. Times in ms.
struct StepMetrics {
  std::int64_t step = 0;  ///< counts from 1
  double loss = 0;        ///< mean over the global batch
  double lr = 0;
  std::optional<double> grad_norm;  ///< before clipping; unknown with an optimizer in backward
  std::int64_t tokens = 0;
  double tokens_per_s = 0;
  double step_ms = 0;
  double comm_wait_ms = 0;      ///< rank 0's time inside collectives
  std::int64_t peak_bytes = 0;  ///< the largest rank's
  double loss_scale = 0;        ///< of fp16 training; 0: none
  bool is_skipped = false;      ///< the gradients overflowed, so the step changed only the loss scale; or it was a bad step
};

/// A launch that resumes from a checkpoint.
struct ResumeMetrics {
  std::int64_t from = 0;   ///< step
  std::string checkpoint;  ///< path
  int num_ranks = 1;
  std::string set_aside;  ///< folder of the later checkpoints and rows, if the run went back; empty: none
};

/// metrics.jsonl of a run: one JSON object per line; each step appears once, also after a resume. Rank 0 only. A row that
/// cannot be written (full disk) is reported once and dropped, so that a run never fails because of its metrics.
class MetricsFile {
 public:
  /// @param path  rows are appended to it; empty: nothing is written. @param warn  is called with one line.
  /// @throws ConfigError if it cannot be written.
  MetricsFile(const std::string& path, std::function<void(const std::string&)> warn);

  void write(const StepMetrics& metrics);
  void write_eval(std::int64_t step, double val_loss);
  void write_checkpoint(std::int64_t step, std::int64_t bytes, double stall_ms, double write_ms);
  /// @param what  what was bad, and the unit  @param action  train.on_bad_step
  void write_bad_step(std::int64_t step, const std::string& what, const std::string& action);
  /// @param to  the checkpoint's step  @param bad_step  the last one whose data is left out
  void write_rolled_back(std::int64_t to, std::int64_t bad_step, const std::string& what);
  void write_resumed(const ResumeMetrics& resume);

 private:
  void write_line(const std::string& json);

  std::string path_;
  std::function<void(const std::string&)> warn_;
  UniqueFd file_;
  bool is_failing_ = false;
};

/// Drops the rows of later steps from `path`: those steps will be repeated, or were set aside. @throws ConfigError
void drop_later_metrics(const std::string& path, std::int64_t last_step);
/// Copies the rows of later steps from `path` to `to`, when the run goes back. @throws IoError
void copy_later_metrics(const std::string& path, std::int64_t last_step, const std::string& to);

}  // namespace mica::train
