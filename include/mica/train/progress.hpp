// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "mica/core/log.hpp"
#include "mica/train/metrics.hpp"

namespace mica::train {

/// The progress display of a run: one line that is redrawn on a terminal, plain lines in a batch log. Rank 0 only.
class Progress {
 public:
  Progress(Logger logger, std::int64_t last_step, bool on_terminal);
  /// Whether the job's standard error, where the lines go, is a terminal. Under mpirun a rank's own stderr does not show that.
  [[nodiscard]] static bool is_on_terminal();

  /// @param keep  end the line even on a terminal, so that it stays (every log_interval steps)
  void show(const StepMetrics& metrics, double seconds_left, bool keep);
  /// A message between progress lines.
  void say(const std::string& text);
  void warn(const std::string& text);

 private:
  void clear_line();

  Logger logger_;
  std::int64_t last_step_;
  bool on_terminal_;
  bool line_is_open_ = false;
};

/// "3 s", "4 min 10 s", "2 h 5 min".
[[nodiscard]] std::string format_duration(double seconds);
/// "9.8k", "1.2M": for counts per second.
[[nodiscard]] std::string format_rate(double per_second);

}  // namespace mica::train
