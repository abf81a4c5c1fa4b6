// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "mica/train/config.hpp"

namespace mica::train {

/// Whether another key's value leaves this one without an effect.
[[nodiscard]] bool is_idle(const Config& config, std::string_view key);

/// Refuses idle keys that the user has set, unless they have their defaults.
/// @throws ConfigError naming both keys.
void refuse_idle_keys(const Config& config);

}  // namespace mica::train
