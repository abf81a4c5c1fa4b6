// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "mica/comm/run_app.hpp"

namespace mica::generate {

/// mica-generate, without its main(). Rank 0 writes results to standard output and figures to standard error.
/// @collective
ExitCode run_generate(App& app);

[[nodiscard]] std::string generate_help(const std::vector<std::string>& arguments);

}  // namespace mica::generate
