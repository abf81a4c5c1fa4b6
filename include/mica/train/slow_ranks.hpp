// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mica/train/rank_figures.hpp"

namespace mica::train {

/// Finds ranks that hold up the others. Since ranks wait for each other, their steps take equally long. So a rank counts as slow by its own
/// time (RankFigures::own_ms): at least kRatio times the median rank's, and more than that by at least kShareOfStep of the step, for kSteps
/// steps in a row. It is reported once, and again only if it was not slow in between. Reads no clock.
class SlowRanks {
 public:
  static constexpr double kRatio = 1.3, kShareOfStep = 0.15;
  static constexpr std::int64_t kSteps = 20;

  /// @param hosts  by rank
  explicit SlowRanks(std::vector<std::string> hosts) : hosts_(std::move(hosts)), slow_steps_(hosts_.size()), is_named_(hosts_.size()) {}

  /// Takes the figures of the last `num_steps` steps. @returns a line for each rank to report
  [[nodiscard]] std::vector<std::string> note(std::int64_t num_steps, const std::vector<RankFigures>& by_rank);

 private:
  std::vector<std::string> hosts_;
  std::vector<std::int64_t> slow_steps_;  // in a row
  std::vector<bool> is_named_;
};

}  // namespace mica::train
