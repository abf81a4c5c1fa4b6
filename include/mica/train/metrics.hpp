// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "mica/plan/memory_plan.hpp"
#include "mica/train/appended_file.hpp"
#include "mica/train/rank_figures.hpp"

namespace mica::train {

/// How rank 0's compute stream spent a step; the parts add up to step_ms.
struct StepSplit {
  double compute_ms = 0;       ///< the rest
  double exposed_comm_ms = 0;  ///< idle, waiting for communication
  double optimizer_ms = 0;
  double data_ms = 0;  ///< idle, waiting for its batch
};

/// One step's figures. Times in ms.
struct StepMetrics {
  std::int64_t step = 0;  ///< counts from 1
  double loss = 0;        ///< mean over the global batch
  double lr = 0;
  std::optional<double> grad_norm;  ///< before clipping; unknown with an optimizer in backward
  std::int64_t tokens = 0;
  double tokens_per_s = 0;
  double step_ms = 0;
  double comm_wait_ms = 0;  ///< rank 0's time inside collectives
  std::optional<StepSplit> split;
  double gflop_per_s = 0;       ///< of rank 0's matrix products; 0: unknown
  std::int64_t peak_bytes = 0;  ///< maximum over ranks
  double loss_scale = 0;        ///< of fp16 training; 0: none
  bool is_skipped = false;      ///< the gradients overflowed, so the step changed only the loss scale; or it was a bad step
};

/// A launch and its memory plan.
struct StartMetrics {
  std::int64_t step = 0;  ///< the last step done before this launch
  std::string version;
  int num_ranks = 1;
  std::int64_t last_step = 0;  ///< train.steps
  std::string device;
  plan::BytesByRole planned{};  ///< peak of each role, per rank
  std::int64_t planned_peak = 0;
};

/// A launch that resumes from a checkpoint.
struct ResumeMetrics {
  std::int64_t from = 0;   ///< step
  std::string checkpoint;  ///< path
  int num_ranks = 1;
  std::string set_aside;  ///< folder of the later checkpoints and rows, if the run went back; empty: none
};

/// metrics.jsonl of a run: one JSON object per line; each step appears once, also after a resume. Rank 0 only. Rows that cannot be
/// written are dropped, so that a run never fails because of its metrics.
class MetricsFile {
 public:
  /// As for AppendedFile.
  MetricsFile(const std::string& path, std::function<void(const std::string&)> warn);

  void write(const StepMetrics& metrics);
  /// @param eval_ms  time for which training stopped
  void write_eval(std::int64_t step, double val_loss, double eval_ms);
  void write_checkpoint(std::int64_t step, std::int64_t bytes, double stall_ms, double write_ms);
  /// @param what  what was bad, and in which unit  @param action  train.on_bad_step
  void write_bad_step(std::int64_t step, const std::string& what, const std::string& action);
  /// @param to  the checkpoint's step  @param bad_step  the last step whose data is skipped
  void write_rolled_back(std::int64_t to, std::int64_t bad_step, const std::string& what);
  void write_resumed(const ResumeMetrics& resume);
  void write_started(const StartMetrics& start);
  /// @param ranks  by rank
  void write_ranks(std::int64_t step, const std::vector<RankFigures>& ranks);
  /// @param peaks  of rank 0's pool, by role  @param peak  of their sum
  void write_memory(std::int64_t step, const plan::BytesByRole& peaks, std::int64_t peak);

 private:
  AppendedFile file_;
};

/// Drops the rows of later steps from `path`: those steps will be repeated, or were set aside. @throws ConfigError,
/// IoError
void drop_later_metrics(const std::string& path, std::int64_t last_step);
/// Copies the rows of later steps from `path` to `to`, when the run goes back. @throws IoError
void copy_later_metrics(const std::string& path, std::int64_t last_step, const std::string& to);

}  // namespace mica::train
