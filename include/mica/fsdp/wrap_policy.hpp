#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "mica/fsdp/fully_shard.hpp"

namespace mica::fsdp {

/// Decides which modules become units (FEATURES B1).
/// @param unwrapped_numel  elements of the module's parameters that no unit below it holds.
using WrapPolicy = std::function<bool(const nn::Module& module, std::int64_t unwrapped_numel)>;

/// Modules of these types, e.g. {"gpt2_block"}.
[[nodiscard]] WrapPolicy wrap_types(std::vector<std::string> type_names);
/// Modules with at least this many elements left.
[[nodiscard]] WrapPolicy wrap_min_numel(std::int64_t min_numel);
/// Only the root.
[[nodiscard]] WrapPolicy wrap_nothing();

/// Applies the policy bottom-up and makes `module` the root unit with what is left. Units inherit `options`.
/// Modules that are units already and containers without a forward of their own are passed over.
Root& auto_wrap(nn::Module& module, DeviceMesh& device_mesh, const Options& options, const WrapPolicy& policy);

}  // namespace mica::fsdp
