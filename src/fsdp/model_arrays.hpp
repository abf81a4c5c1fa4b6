// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "mica/fsdp/state_arrays.hpp"

namespace mica::fsdp {

/// Everything that a module's state dict has, in module order, parameters before buffers; checked to be usable now.
/// @param action  "saved", "loaded": for error texts.
[[nodiscard]] StateArrays model_arrays(nn::Module& module, std::string_view action);

/// The key of each unit in a local state dict.
[[nodiscard]] std::string local_key(nn::Module& module, const Unit& unit);
/// What of this rank's shard is in a local state dict: up to the last parameter's end.
[[nodiscard]] std::int64_t unpadded_numel(Unit& unit);
/// Refuses what is not sharded.
void require_sharded(const std::vector<Unit*>& units, std::string_view what);

}  // namespace mica::fsdp
