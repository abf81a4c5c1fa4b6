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
  double busy_ms = 0;     ///< summed over the collectives of all streams, so it may exceed span_ms
  double exposed_ms = 0;  ///< time that the compute stream waited for other streams, or ran collectives itself; inline, all of busy_ms
  [[nodiscard]] double hidden_percent() const;
};

/// The trace-rank<N>.json of a run's folder, by rank; for the path of a file, just that file
[[nodiscard]] std::vector<std::string> trace_files(const std::string& path);
/// @throws ConfigError if it is not a trace, or has no events
[[nodiscard]] TraceSummary summarize_trace(const std::string& file);
[[nodiscard]] std::string summary_line(const TraceSummary& summary);

/// All ranks' summaries, and timelines of one step for some ranks: rank 0, the rank that waits least (the others wait for it), the rank
/// that waits most, and so on. Null if no file can be read. Files are parsed as streams: at most one step of a file is in memory.
/// @param left_out  gets what is wrong with each file that cannot be read, such as one that a killed run left incomplete
[[nodiscard]] nlohmann::ordered_json traces_json(const std::vector<std::string>& files, std::int64_t num_timelines,
                                                 std::vector<std::string>& left_out);

}  // namespace mica::report
