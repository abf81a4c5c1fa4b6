// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

#include "mica/fsdp/root.hpp"
#include "mica/fsdp/unit.hpp"

namespace mica::fsdp {

/// Makes `module` a unit: its parameters, except those held by units below it, are gathered and resharded together. Call it
/// bottom-up; the outermost call makes the root unit, which is found at first use. root_of(module).initialize() allocates
/// storage.
/// @param device_mesh  outlives the module.
/// @throws ConfigError  for a module that is a unit already, a strategy that does not fit the mesh, both ignored modules and
///                      ignored parameters, or an ignored module that is a unit. Conflicts between units are refused by the
///                      root, at first use.
/// Example: for (nn::Module* block : blocks) fully_shard(*block, device_mesh, options);
///          fully_shard(model, device_mesh, options);
Unit& fully_shard(nn::Module& module, DeviceMesh& device_mesh, const Options& options);

/// The runtime of the tree of units whose root unit is attached to `module`.
/// @throws Error if the module is not a unit.
[[nodiscard]] Root& root_of(nn::Module& module);

/// Checks everything that fully_shard() refuses immediately. @throws ConfigError naming the module's type.
void check_wrappable(const nn::Module& module, const DeviceMesh& device_mesh, const Options& options);

/// Checks strategy against mesh shape (docs/design.md, Meshes and batches). @throws ConfigError naming what to use instead.
void check_strategy(Strategy strategy, const MeshGeometry& geometry);

}  // namespace mica::fsdp
