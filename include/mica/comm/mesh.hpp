// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "mica/comm/process_group.hpp"

namespace mica {

/// Where a world rank runs.
struct RankPlace {
  int world_rank = 0;
  std::string host;
  int node = 0;        ///< nodes numbered by their lowest world rank
  int local_rank = 0;  ///< within the node
};

/// `[mesh] shard_size`: world, node or a number.
struct ShardSize {
  enum class Kind : std::uint8_t { world, node, number } kind = Kind::world;
  int number = 0;
};

/// Ranks as a grid: replicate axis x shard axis (docs/design.md, Meshes and batches). Pure math.
/// Example: world 6, shard_size 3 -> shard groups {0,1,2},{3,4,5}; replicate groups {0,3},{1,4},{2,5}.
struct MeshGeometry {
  int world_size = 1;
  int shard_size = 1;
  int replicas = 1;
  [[nodiscard]] int shard_rank(int mesh_rank) const { return mesh_rank % shard_size; }
  [[nodiscard]] int replica_rank(int mesh_rank) const { return mesh_rank / shard_size; }
  /// The first replica whose shard group is on several nodes. @param places  every rank's, in mesh order
  [[nodiscard]] std::optional<int> replica_over_nodes(const std::vector<RankPlace>& places) const;

  /// @param places  every rank's, in mesh order.
  /// @throws ConfigError naming hosts and counts (uneven nodes under `node`), or the valid sizes.
  static MeshGeometry make(const std::vector<RankPlace>& places, ShardSize shard_size);
};

/// The groups of one rank. Every pointer is non-null; an axis of size 1 has a group of one rank.
class Mesh {
 public:
  /// @param world  in mesh order; the mesh owns it. @collective over it.
  Mesh(std::unique_ptr<ProcessGroup> world, MeshGeometry geometry, std::vector<RankPlace> places = {});

  /// From existing groups.
  Mesh(std::unique_ptr<ProcessGroup> world, std::unique_ptr<ProcessGroup> shard, std::unique_ptr<ProcessGroup> replicate);

  /// Rebuilds the mesh for another set of ranks: those that are left after one was lost. @param world  in mesh order; the mesh owns
  /// it. Not one of the old groups, which are destroyed. @collective over it.
  void rebuild(std::unique_ptr<ProcessGroup> world, MeshGeometry geometry, std::vector<RankPlace> places = {});
  /// Number of times it was rebuilt.
  [[nodiscard]] int epoch() const { return epoch_; }

  [[nodiscard]] const MeshGeometry& geometry() const { return geometry_; }
  [[nodiscard]] int rank() const { return world_->rank(); }
  [[nodiscard]] int shard_rank() const { return geometry_.shard_rank(rank()); }
  [[nodiscard]] int replica_rank() const { return geometry_.replica_rank(rank()); }
  [[nodiscard]] int world_size() const { return geometry_.world_size; }
  [[nodiscard]] int shard_size() const { return geometry_.shard_size; }
  [[nodiscard]] int replicas() const { return geometry_.replicas; }
  [[nodiscard]] ProcessGroup& world() const { return *world_; }
  [[nodiscard]] ProcessGroup& shard() const { return *shard_; }
  [[nodiscard]] ProcessGroup& replicate() const { return *replicate_; }
  [[nodiscard]] const std::vector<RankPlace>& places() const { return places_; }
  /// MPI's rank of a rank of the mesh, which users know: they differ where a node's ranks are not side by side in MPI.
  [[nodiscard]] int world_rank_of(int mesh_rank) const;
  /// @param what  "mesh.backend = shared", for the error  @throws ConfigError naming a shard group on several nodes and its hosts
  void require_shards_inside_nodes(const std::string& what) const;
  /// "mesh 2 x 2 (replicate x shard), shard groups: {0,1} on node1; {2,3} on node2" (world ranks): printed at start-up.
  [[nodiscard]] std::string describe() const;

 private:
  /// "{0,1} on node1"
  [[nodiscard]] std::string shard_group_text(int replica_rank) const;

  MeshGeometry geometry_;
  std::vector<RankPlace> places_;
  std::unique_ptr<ProcessGroup> world_, shard_, replicate_;
  int epoch_ = 0;
};

}  // namespace mica
