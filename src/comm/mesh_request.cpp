// SPDX-License-Identifier: Apache-2.0
#include "mica/comm/mesh_request.hpp"

#include <algorithm>
#include <numeric>

#include <fmt/ranges.h>

#include "mica/comm/host_comm.hpp"
#include "mica/core/error.hpp"

namespace mica {
namespace {

/// Whether every rank of the group has the same number.
bool is_uniform(ProcessGroup& group, Stream& stream, int number) {
  const std::vector<std::string> all = make_group_comm(group, stream, "mesh")->gather_strings(std::to_string(number));
  return std::ranges::all_of(all, [&](const std::string& each) { return each == all.front(); });
}

Mesh mesh_of_groups(std::unique_ptr<ProcessGroup> world, MeshRequest request) {
  const auto stream = make_cpu_stream("mesh", StreamMode::inlined);
  const int shard_size = request.shard->num_ranks();
  const int replicas = request.replicate->num_ranks();
  const auto comm = make_group_comm(*world, *stream, "mesh");
  comm->agree([&] {
    require<ConfigError>(shard_size * replicas == world->num_ranks(),
                         "groups of {} ranks (shard) and {} (replicate) make a mesh of {}, but the world has {}", shard_size, replicas,
                         shard_size * replicas, world->num_ranks());
  });
  const bool crosses = is_uniform(*request.shard, *stream, request.replicate->rank());
  const bool is_crossed = is_uniform(*request.replicate, *stream, request.shard->rank());
  comm->agree([&] {
    require<ConfigError>(crosses && is_crossed,
                         "the groups given do not form a grid: ranks of one shard group need one replicate rank, ranks of one "
                         "replicate group one shard rank. The pair is (shard, replicate), in that order");
  });
  auto ordered = world->split(0, request.replicate->rank() * shard_size + request.shard->rank(), "world");
  return {std::move(ordered), std::move(request.shard), std::move(request.replicate)};
}

}  // namespace

Mesh make_mesh(std::unique_ptr<ProcessGroup> world, MeshRequest request) {
  const bool has_groups = request.shard || request.replicate;
  require<ConfigError>(has_groups != !request.grid.empty(), "a hybrid mesh is made of groups or of a grid: {} was given",
                       has_groups ? "both" : "neither");
  if (!has_groups) {
    const std::vector<int>& grid = request.grid;
    require<ConfigError>(grid.size() == 2, "a hybrid mesh has 2 dimensions, replicate x shard, but {} of [{}] was given", grid.size(),
                         fmt::join(grid, ", "));
    require<ConfigError>(grid[0] >= 1 && grid[1] >= 1 && grid[0] * grid[1] == world->num_ranks(),
                         "a mesh of {} x {} (replicate x shard) does not fit the {} ranks of the world", grid[0], grid[1],
                         world->num_ranks());
    const MeshGeometry geometry{world->num_ranks(), grid[1], grid[0]};
    return {std::move(world), geometry};
  }
  require<ConfigError>(request.shard && request.replicate,
                       "a hybrid mesh needs the pair of groups (shard, replicate), but the {} group is missing",
                       request.shard ? "replicate" : "shard");
  return mesh_of_groups(std::move(world), std::move(request));
}

}  // namespace mica
