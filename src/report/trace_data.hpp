// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace mica::report {

/// How much of the communication a traced rank hid behind computing. Times in ms.
struct TraceSummary {
  int rank = 0;
  double span_ms = 0;
  std::int64_t num_collectives = 0, bytes = 0;
  double busy_ms = 0;     ///< of the collectives of all streams together, so that it may be longer than the steps
  double exposed_ms = 0;  ///< that the compute stream waited for other streams, or for collectives of its own
  [[nodiscard]] double hidden_percent() const;
};

/// The trace-rank<N>.json of a run's folder, by rank; a file is its own list. @throws ConfigError if there is no such path
[[nodiscard]] std::vector<std::string> trace_files(const std::string& path);
/// @throws ConfigError if it is no trace, or holds no events
[[nodiscard]] TraceSummary summarize_trace(const std::string& file);
[[nodiscard]] std::string summary_line(const TraceSummary& summary);

/// All ranks' summaries, and the timelines of one step of some: rank 0, the rank that waits least (for which the others wait), the one
/// that waits most ... Read as streams: of each file at most a step is in memory.
[[nodiscard]] nlohmann::ordered_json traces_json(const std::vector<std::string>& files, std::int64_t num_timelines);

}  // namespace mica::report
