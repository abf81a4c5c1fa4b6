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

/// Traces the steps of log.trace. Every rank writes a file of its own.
class StepTrace {
 public:
  /// @param tracer  of the device's streams, null without log.trace; outlives this.  @param path  of the file
  StepTrace(Tracer* tracer, const std::string& steps, std::string path);

  void begin_step(std::int64_t step);
  /// @returns the file's path when it was written now.  @throws IoError
  [[nodiscard]] std::optional<std::string> end_step(std::int64_t step);

 private:
  Tracer* tracer_;
  StepRange steps_;
  std::string path_;
};

}  // namespace mica::train
