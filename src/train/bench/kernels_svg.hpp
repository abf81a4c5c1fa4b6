// SPDX-License-Identifier: Apache-2.0
#pragma once

// Private to mica-bench: a picture of a step's kernels beside the machine's limits.

#include <string>

#include "kernel_times.hpp"

namespace mica::train::bench {

/// Two panels: a roofline of the tasks with products, whose areas are their shares of the step, and the bandwidth of the others beside
/// that of copies of their size. A standalone SVG for light and dark mode.
[[nodiscard]] std::string kernels_svg(const std::string& title, const StepTimes& times);

}  // namespace mica::train::bench
