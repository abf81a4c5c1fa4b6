// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "mica/fsdp/state_arrays.hpp"

namespace mica::fsdp {

/// Everything in a module's state dict, in module order, parameters before buffers.
/// @param action  "saved", "loaded": for error texts.  @throws Error if a root is not idle or has no values; ConfigError if the
///                module has no unit, or an array no data.
[[nodiscard]] StateArrays model_arrays(nn::Module& module, std::string_view action);

/// The key of each unit in a local state dict.
[[nodiscard]] std::string local_key(nn::Module& module, const Unit& unit);
/// Elements of this rank's shard in a local state dict: up to the end of the last parameter.
[[nodiscard]] std::int64_t unpadded_numel(Unit& unit);
/// @throws Error naming a unit that is not sharded.
void require_sharded(const std::vector<Unit*>& units, std::string_view what);

}  // namespace mica::fsdp
