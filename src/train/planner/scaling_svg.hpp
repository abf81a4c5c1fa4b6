// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace mica::train {

struct ScalingPoint {
  int num_ranks = 1;
  double step_ms = 0, mfu = 0;
};
struct ScalingLine {
  std::string name;
  std::vector<ScalingPoint> points;  ///< by num_ranks
};

/// Step time and MFU over ranks (logarithmic), with a line for each name, as a standalone SVG for light and dark mode.
[[nodiscard]] std::string scaling_svg(const std::string& title, const std::vector<ScalingLine>& lines);

}  // namespace mica::train
