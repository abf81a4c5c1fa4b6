// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>
#include <vector>

#include "mica/fsdp/root.hpp"

namespace mica::fsdp {

// A module tree seen as units (docs/parity.md B9). Roots are found at first use: of nested units, the outermost one that is
// used (forward, state dict, initialize) becomes the root of those inside it.

/// Units of the subtree in module order, outer ones first. Does not count as a use.
/// @param recurse  false: only the module's own.
[[nodiscard]] std::vector<Unit*> units_of(nn::Module& module, bool recurse = true);

/// The roots of these units, each once, in order. Counts as a use.
[[nodiscard]] std::vector<Root*> roots_of(const std::vector<Unit*>& units);
/// The roots of the subtree's units: the one of `module` (or around it), or several independent ones inside a plain module.
[[nodiscard]] inline std::vector<Root*> roots_of(nn::Module& module) { return roots_of(units_of(module)); }

/// Checks, after sharding, that every parameter of the subtree is in a unit or ignored. initialize() does this for its root; this
/// function also serves plain modules that hold several roots.
/// @throws ConfigError with name and shape of the first that is not.
void check_all_assigned(nn::Module& module);

/// For callers that need all units of a root on one mesh. @param what  the caller in the error: "a checkpoint"
/// @throws ConfigError naming a unit on another mesh than the root.
void require_one_mesh(const Root& root, std::string_view what);

}  // namespace mica::fsdp
