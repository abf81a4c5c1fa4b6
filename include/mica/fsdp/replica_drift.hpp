// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "mica/fsdp/root.hpp"

namespace mica::fsdp {

/// Whether more than one rank holds the same shard of a unit.
[[nodiscard]] bool has_replicas(const Root& root);

/// Checks that replicas hold the same bits: a hash of each unit's master shard is compared between the ranks that hold the same
/// shard (the replicate axis; for a no_shard unit the world). A memory error, or ranks that run different builds, would
/// otherwise go unnoticed and slowly corrupt the model. Without replicas nothing is compared or sent.
/// @collective over the mesh, between passes. The host waits.
/// @throws DesyncError on every rank alike, naming the first unit that differs, its shard and the world ranks with their
///         hashes; Error naming the state when the root is in a pass.
void check_replicas(Root& root);

}  // namespace mica::fsdp
