// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include <nlohmann/json.hpp>

namespace mica::report {

/// How much of a run goes into the page.
struct Detail {
  std::int64_t num_points = 2000;     ///< stretches of a curve, each drawn with its lowest and highest value
  std::int64_t num_columns = 400;     ///< stretches of the heat map
  std::int64_t num_bars = 100;        ///< stretches of the stacked times: few, so that evaluations and saves are averaged over many steps
  std::int64_t num_rows = 128;        ///< rows of the heat map; if there are more ranks, several share a row
  std::int64_t num_traced_ranks = 3;  ///< whose timelines are drawn
};

/// What the page shows of one run: series, heat map, memory, events, traces. docs/report.md explains each view.
/// @param folder  of the run. @throws ConfigError if there are no metrics
[[nodiscard]] nlohmann::ordered_json run_data(const std::string& folder, const Detail& detail);

}  // namespace mica::report
