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
/// "10-12", "10". Nothing for what is no such range, or begins before 1.
[[nodiscard]] std::optional<StepRange> parse_steps(const std::string& text);

/// Traces the steps of log.trace that this launch does. Every rank writes a file of its own.
class StepTrace {
 public:
  /// @param tracer  of the device's streams, null without log.trace; outlives this.  @param path  of the file
  StepTrace(Tracer* tracer, const std::string& steps, std::string path);

  void begin_step(std::int64_t step);
  /// @returns what to tell the user, when there is something: the file was written.  @throws IoError
  [[nodiscard]] std::optional<std::string> end_step(std::int64_t step);
  /// The launch ends: writes what was traced of a range that was not reached to its end.
  /// @param last_done  step  @returns what to tell the user.  @throws IoError
  [[nodiscard]] std::optional<std::string> end_run(std::int64_t last_done);

 private:
  [[nodiscard]] std::string write(std::int64_t last_traced);

  Tracer* tracer_;
  std::string text_;  // log.trace
  StepRange steps_;
  std::string path_;
  std::int64_t first_traced_ = 0;  // 0: none yet
  bool is_written_ = false;
};

}  // namespace mica::train
