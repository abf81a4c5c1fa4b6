// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "mica/comm/run_app.hpp"

namespace mica::train {

/// mica-train: `[CONFIG] [--section.key=value ...] [--check]`. @collective
ExitCode run_training(App& app);

[[nodiscard]] std::string training_help(const std::vector<std::string>& arguments);
/// What this binary was built with and which GPUs it sees, one per line.
[[nodiscard]] std::string build_text();

}  // namespace mica::train
