#pragma once

#include <string>

#include "mica/train/run_app.hpp"

namespace mica::train {

/// mica-train: `CONFIG [--section.key=value ...] [--check] [--help] [--version]`. @collective
ExitCode run_training(App& app);

/// Mica's version and what this binary was built with.
[[nodiscard]] std::string version_text();

}  // namespace mica::train
