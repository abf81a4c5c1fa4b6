// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mica/train/rank_figures.hpp"

namespace mica::train {

/// Finds ranks that hold up the others. All ranks' steps take equally long, since they wait for each other; so a slow rank is one
/// that needs kRatio times the median rank's own time, and that much more that it matters to the step (kShareOfStep), for kSteps steps
/// in a row. It is named once, and again when it was as fast as the others in between. Pure: it reads no clock.
class SlowRanks {
 public:
  static constexpr double kRatio = 1.3, kShareOfStep = 0.15;
  static constexpr std::int64_t kSteps = 20;

  /// @param hosts  by rank
  explicit SlowRanks(std::vector<std::string> hosts) : hosts_(std::move(hosts)), slow_steps_(hosts_.size()), is_named_(hosts_.size()) {}

  /// Takes the figures of the last `num_steps` steps. @returns what is to be told
  [[nodiscard]] std::vector<std::string> note(std::int64_t num_steps, const std::vector<RankFigures>& by_rank);

 private:
  std::vector<std::string> hosts_;
  std::vector<std::int64_t> slow_steps_;  // in a row
  std::vector<bool> is_named_;
};

}  // namespace mica::train
