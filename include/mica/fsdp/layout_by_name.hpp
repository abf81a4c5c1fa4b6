// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "mica/fsdp/shard_layout.hpp"

namespace mica::fsdp {

/// The layout with this ShardLayout::name() ("flat", "per_parameter 0,0,1") over any number of ranks, to read a checkpoint's
/// units and to reshard them. Over one rank nothing is cut, whatever the name.
/// @throws ConfigError for another name, another number of dims than parameters, or what the layout itself refuses.
[[nodiscard]] std::unique_ptr<ShardLayout> make_layout(std::string_view name, std::vector<ParameterSpec> parameters, int shard_size);

}  // namespace mica::fsdp
