// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include "mica/core/error.hpp"

namespace mica::train {

/// mica-plan: `CONFIG --ranks=N [--flags] [--section.key=value]`. Needs neither MPI nor the data files.
/// @throws ConfigError for invalid flags, config or hardware
ExitCode run_plan(const std::vector<std::string>& arguments, std::ostream& out);

[[nodiscard]] std::string plan_help(const std::vector<std::string>& arguments);

}  // namespace mica::train
