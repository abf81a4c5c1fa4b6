// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "mica/train/forecast.hpp"

#include "support/paths.hpp"

namespace mica::train {

inline std::string config_path(const std::string& name) { return test::source_folder() + "/configs/" + name + ".cfg"; }

/// Numbers of parameters of gpt2-tiny-text: of each of its 4 blocks, of the root unit, of all.
inline constexpr double kBlock = 12 * 128 * 128 + 13 * 128, kRootUnit = 256 * 128 + 128 * 128 + 2 * 128, kAll = 4 * kBlock + kRootUnit;

inline Config tiny(const std::vector<std::string>& flags = {}) {
  return parse_config(read_config_text(config_path("gpt2-tiny-text")), flags);
}

inline Cluster cluster(int num_ranks, int ranks_per_node, const std::string& hardware = "a100-80") {
  return {.hardware = plan::find_hardware(hardware), .num_ranks = num_ranks, .ranks_per_node = ranks_per_node};
}

/// Of a run on GPUs.
inline plan::StepTotals totals(const DryRun& run, int ranks_per_node) {
  return plan::totals_of(run.record, 1, ranks_per_node, /*is_gpu=*/true);
}

}  // namespace mica::train
