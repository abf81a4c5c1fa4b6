// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "mica/train/config.hpp"

namespace mica::train {

/// Whether another key's value leaves this one without an effect.
[[nodiscard]] bool is_idle(const Config& config, std::string_view key);

/// Refuses idle keys that the user has set, unless they have their defaults.
/// @throws ConfigError naming both keys.
void refuse_idle_keys(const Config& config);

/// Gives idle keys that the user has set their defaults. @returns "--fsdp.min_numel=1" for each that had another value
std::vector<std::string> reset_idle_keys(Config& config);

}  // namespace mica::train
