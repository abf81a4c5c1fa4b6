#pragma once

#include <cstdint>
#include <fstream>
#include <optional>
#include <string>

namespace mica::train {

/// One step's figures (DESIGN section 9). Times in ms.
struct StepMetrics {
  std::int64_t step = 0;  ///< counts from 1
  double loss = 0;        ///< mean over the global batch
  double lr = 0;
  std::optional<double> grad_norm;  ///< before clipping; unknown to an optimizer in backward
  std::int64_t tokens = 0;
  double tokens_per_s = 0;
  double step_ms = 0;
  double comm_wait_ms = 0;       ///< rank 0's time inside collectives
  std::int64_t peak_bytes = 0;  ///< the largest rank's
  double loss_scale = 0;        ///< of fp16 training; 0: there is none
  bool is_skipped = false;      ///< the gradients overflowed: the step changed nothing but the loss scale
};

/// metrics.jsonl of a run: one JSON object a line, each step once also after a resume. Rank 0 only.
class MetricsFile {
 public:
  /// @param path  empty: nothing is written.
  /// @param last_step  lines of later steps are dropped first: they will be done again.
  /// @throws ConfigError when it cannot be written.
  MetricsFile(const std::string& path, std::int64_t last_step);

  void write(const StepMetrics& metrics);
  void write_eval(std::int64_t step, double val_loss);
  void write_checkpoint(std::int64_t step, std::int64_t bytes, double stall_ms, double write_ms);

 private:
  void write_line(const std::string& json);

  std::string path_;
  std::ofstream file_;
};

}  // namespace mica::train
