// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "mica/train/config.hpp"

namespace mica::train {

/// Refuses keys that the user has set and another key's value leaves without an effect, unless they have their defaults.
/// @throws ConfigError naming both keys.
void refuse_idle_keys(const Config& config);

}  // namespace mica::train
