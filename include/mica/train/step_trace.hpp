// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "mica/device/tracer.hpp"

namespace mica::train {

/// Steps from first to last.
struct StepRange {
  std::int64_t first = 0, last = 0;
};
/// "10-12", "10". Nothing if the text is not such a range or begins before 1.
[[nodiscard]] std::optional<StepRange> parse_steps(const std::string& text);

/// Traces the steps of log.trace that this launch runs. Every rank writes its own file.
class StepTrace {
 public:
  /// @param tracer  of the device's streams; null without log.trace. @param compute  the stream on which each step is marked. Both outlive
  /// this.
  /// @param run_folder  gets trace-rank<N>.json. Those of earlier launches are removed when tracing begins.
  StepTrace(Tracer* tracer, Stream& compute, const std::string& steps, std::string run_folder, int rank, int num_ranks);

  void begin_step(std::int64_t step);
  /// @returns a message for the user, if the file was written. @throws IoError
  [[nodiscard]] std::optional<std::string> end_step(std::int64_t step);
  /// The run goes back to an earlier step: what was traced is dropped, and tracing begins anew when it reaches the first step again.
  void go_back();
  /// At the end of the launch: writes the trace of a range that was only partly reached.
  /// @param last_done  step @returns a message for the user. @throws IoError
  [[nodiscard]] std::optional<std::string> end_run(std::int64_t last_done);

 private:
  [[nodiscard]] std::string path_of(int rank) const;
  void remove_earlier() const;
  [[nodiscard]] std::string write(std::int64_t last_traced);

  Tracer* tracer_;
  Stream& compute_;
  std::string text_;  // log.trace
  StepRange steps_;
  std::string run_folder_;
  int rank_, num_ranks_;
  std::int64_t first_traced_ = 0;  // 0: none yet
  bool is_written_ = false;
};

}  // namespace mica::train
