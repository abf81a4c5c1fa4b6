// SPDX-License-Identifier: Apache-2.0
#include "mica/comm/mesh.hpp"

#include <algorithm>
#include <map>
#include <numeric>

#include <fmt/ranges.h>

#include "mica/core/error.hpp"

namespace mica {
namespace {

std::string divisors_of(int n) {
  std::string text;
  for (int d = 1; d <= n; ++d) {
    if (n % d == 0) text += fmt::format("{}{}", text.empty() ? "" : ", ", d);
  }
  return text;
}

/// The number of ranks on every node.
int ranks_per_node(const std::vector<RankPlace>& places) {
  std::map<int, int> count;
  std::map<int, std::string> host;
  for (const RankPlace& place : places) {
    ++count[place.node];
    host[place.node] = place.host;
  }
  const int first = count.begin()->second;
  if (std::any_of(count.begin(), count.end(), [&](const auto& node) { return node.second != first; })) {
    std::string seen;
    for (const auto& [node, ranks] : count) {
      seen += fmt::format("{}{} has {}", seen.empty() ? "" : ", ", host[node], ranks);
    }
    throw ConfigError(
        fmt::format("mesh.shard_size=node (what auto means for hybrid strategies) needs the same number of ranks on every node, "
                    "but {}; start equal numbers or set mesh.shard_size to world or a number that divides {}: {}",
                    seen, places.size(), divisors_of(static_cast<int>(places.size()))));
  }
  return first;
}

std::vector<int> shard_members(const MeshGeometry& g, int replica_rank) {
  std::vector<int> members(static_cast<std::size_t>(g.shard_size));
  std::iota(members.begin(), members.end(), replica_rank * g.shard_size);
  return members;
}

std::vector<int> replicate_members(const MeshGeometry& g, int shard_rank) {
  std::vector<int> members;
  for (int r = 0; r < g.replicas; ++r) members.push_back(r * g.shard_size + shard_rank);
  return members;
}

/// "{0,1,2}", or "{0,1,...,63}" when long.
std::string braces(const std::vector<int>& ranks) {
  if (ranks.size() <= 8) return fmt::format("{{{}}}", fmt::join(ranks, ","));
  return fmt::format("{{{},{},...,{}}}", ranks[0], ranks[1], ranks.back());
}

std::string hosts_of(const std::vector<int>& ranks, const std::vector<RankPlace>& places) {
  if (places.empty()) return {};
  std::vector<std::string> hosts;
  for (const int r : ranks) {
    const std::string& host = places[static_cast<std::size_t>(r)].host;
    if (std::find(hosts.begin(), hosts.end(), host) == hosts.end()) hosts.push_back(host);
  }
  if (hosts.size() > 4) return fmt::format(" on {} hosts", hosts.size());
  return fmt::format(" on {}", fmt::join(hosts, ", "));
}

}  // namespace

MeshGeometry MeshGeometry::make(const std::vector<RankPlace>& places, ShardSize shard_size) {
  const int world = static_cast<int>(places.size());
  require<ConfigError>(world >= 1, "a mesh of no ranks; expected at least one");
  int size = world;
  switch (shard_size.kind) {
    case ShardSize::Kind::world:
      break;
    case ShardSize::Kind::node:
      size = ranks_per_node(places);
      break;
    case ShardSize::Kind::number:
      size = shard_size.number;
      break;
  }
  require<ConfigError>(size >= 1 && size <= world && world % size == 0, "mesh.shard_size={} does not divide the {} ranks; valid sizes: {}",
                       size, world, divisors_of(world));
  return {world, size, world / size};
}

std::optional<int> MeshGeometry::replica_over_nodes(const std::vector<RankPlace>& places) const {
  const auto node_of = [&](int mesh_rank) { return places[static_cast<std::size_t>(mesh_rank)].node; };
  for (int r = 0; r < replicas; ++r) {  // in mesh order a node's ranks are side by side
    if (node_of(r * shard_size) != node_of((r + 1) * shard_size - 1)) return r;
  }
  return std::nullopt;
}

Mesh::Mesh(std::unique_ptr<ProcessGroup> world, MeshGeometry geometry, std::vector<RankPlace> places)
    : geometry_(geometry), places_(std::move(places)), world_(std::move(world)) {
  require<ConfigError>(world_->num_ranks() == geometry_.world_size && geometry_.shard_size * geometry_.replicas == geometry_.world_size,
                       "a mesh of {} x {} (replicate x shard) over {} ranks was given a world group of {} ranks", geometry_.replicas,
                       geometry_.shard_size, geometry_.world_size, world_->num_ranks());
  require<ConfigError>(places_.empty() || places_.size() == static_cast<std::size_t>(geometry_.world_size),
                       "a mesh of {} ranks was given the places of {}", geometry_.world_size, places_.size());
  shard_ = world_->subgroup(shard_members(geometry_, replica_rank()), "shard");
  replicate_ = world_->subgroup(replicate_members(geometry_, shard_rank()), "replicate");
}

Mesh::Mesh(std::unique_ptr<ProcessGroup> world, std::unique_ptr<ProcessGroup> shard, std::unique_ptr<ProcessGroup> replicate)
    : geometry_{world->num_ranks(), shard->num_ranks(), replicate->num_ranks()},
      world_(std::move(world)),
      shard_(std::move(shard)),
      replicate_(std::move(replicate)) {
  require(shard_->rank() == shard_rank() && replicate_->rank() == replica_rank(),
          "rank {} of a mesh has rank {} in its shard group and {} in its replicate group, expected {} and {}", rank(), shard_->rank(),
          replicate_->rank(), shard_rank(), replica_rank());
}

int Mesh::world_rank_of(int mesh_rank) const {
  return places_.empty() ? mesh_rank : places_[static_cast<std::size_t>(mesh_rank)].world_rank;
}

std::string Mesh::shard_group_text(int replica_rank) const {
  const std::vector<int> members = shard_members(geometry_, replica_rank);
  std::vector<int> world_ranks;
  for (const int r : members) world_ranks.push_back(world_rank_of(r));
  return braces(world_ranks) + hosts_of(members, places_);
}

void Mesh::rebuild(std::unique_ptr<ProcessGroup> world, MeshGeometry geometry, std::vector<RankPlace> places) {
  const int epoch = epoch_ + 1;
  *this = Mesh(std::move(world), geometry, std::move(places));
  epoch_ = epoch;
}

void Mesh::require_shards_inside_nodes(const std::string& what) const {
  if (places_.empty()) return;
  const std::optional<int> replica = geometry_.replica_over_nodes(places_);
  if (!replica) return;
  throw ConfigError(
      fmt::format("{} needs shard groups inside nodes, but one is {}: use fsdp.strategy=hybrid_shard with "
                  "mesh.shard_size=node, or set mesh.backend=mpi",
                  what, shard_group_text(*replica)));
}

std::string Mesh::describe() const {
  constexpr int kMostGroups = 8;
  std::string groups;
  for (int r = 0; r < geometry_.replicas && r < kMostGroups; ++r) {
    groups += (r == 0 ? "" : "; ") + shard_group_text(r);
  }
  if (geometry_.replicas > kMostGroups) groups += fmt::format("; ... {} more", geometry_.replicas - kMostGroups);
  return fmt::format("mesh {} x {} (replicate x shard), shard groups: {}", geometry_.replicas, geometry_.shard_size, groups);
}

}  // namespace mica
