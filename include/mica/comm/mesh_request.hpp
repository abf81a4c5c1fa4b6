// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "mica/comm/mesh.hpp"

namespace mica {

/// What a user asks of a hybrid mesh (docs/parity.md A2): either existing groups, or a grid.
struct MeshRequest {
  std::unique_ptr<ProcessGroup> shard;      ///< with `replicate`
  std::unique_ptr<ProcessGroup> replicate;  ///< of the ranks with the same shard rank
  std::vector<int> grid;                    ///< {replicate, shard}; neighbours in the world share a shard group
};

/// Mesh order follows from the groups (replicate rank, then shard rank), not from the order of `world`.
/// Example: world 4, grid {2, 2} -> shard groups {0,1},{2,3}; replicate groups {0,2},{1,3}.
/// @collective over `world`, which the mesh owns afterwards.
/// @throws ConfigError on all ranks: groups and a grid, neither, only one group, a grid of another dimension, sizes that
///         do not make the world, or groups that do not cross.
[[nodiscard]] Mesh make_mesh(std::unique_ptr<ProcessGroup> world, MeshRequest request);

}  // namespace mica
