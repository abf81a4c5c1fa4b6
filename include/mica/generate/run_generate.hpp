// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "mica/comm/run_app.hpp"

namespace mica::generate {

/// mica-generate, without its main(). What was asked for goes to standard output of rank 0, figures to standard error.
/// @collective
ExitCode run_generate(App& app);

[[nodiscard]] std::string generate_help(const std::vector<std::string>& arguments);

}  // namespace mica::generate
