// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <map>

#include "mica/comm/mpi_group.hpp"
#include "mica/core/error.hpp"

namespace mica {

std::vector<RankPlace> find_places(const mpi::Communicator& world) {
  const mpi::Communicator node = world.split_node();
  std::array<char, MPI_MAX_PROCESSOR_NAME> host{};
  int length = 0;
  mpi::check(MPI_Get_processor_name(host.data(), &length), "MPI_Get_processor_name");
  // Nodes are identified by their lowest world rank: two nodes may have the same host name.
  const std::string leader = node.broadcast_string(std::to_string(world.rank()), 0);
  const auto all =
      world.gather_strings(fmt::format("{} {} {}", leader, node.rank(), std::string_view(host.data(), static_cast<std::size_t>(length))));

  std::vector<RankPlace> places;
  std::map<int, int> node_of_leader;
  for (std::size_t r = 0; r < all.size(); ++r) {
    const std::size_t first = all[r].find(' ');
    const std::size_t second = all[r].find(' ', first + 1);
    RankPlace place;
    place.world_rank = static_cast<int>(r);
    place.node = std::stoi(all[r].substr(0, first));  // the leader for now
    place.local_rank = std::stoi(all[r].substr(first + 1, second - first - 1));
    place.host = all[r].substr(second + 1);
    node_of_leader[place.node] = 0;
    places.push_back(std::move(place));
  }
  int next = 0;
  for (auto& [lowest_rank, number] : node_of_leader) number = next++;
  for (RankPlace& place : places) place.node = node_of_leader.at(place.node);
  return places;
}

std::vector<RankPlace> mesh_order(std::vector<RankPlace> by_world_rank) {
  std::stable_sort(by_world_rank.begin(), by_world_rank.end(), [](const RankPlace& a, const RankPlace& b) {
    return std::pair(a.node, a.local_rank) < std::pair(b.node, b.local_rank);
  });
  return by_world_rank;
}

Mesh make_mpi_mesh(const mpi::Communicator& world, ShardSize shard_size, Pool& pool, MpiGroupOptions options,
                   std::vector<RankPlace> by_world_rank, const GroupBackend& backend) {
  if (by_world_rank.empty()) by_world_rank = find_places(world);
  std::vector<RankPlace> places = mesh_order(std::move(by_world_rank));
  const MeshGeometry geometry = MeshGeometry::make(places, shard_size);
  const auto me = std::find_if(places.begin(), places.end(), [&](const RankPlace& p) { return p.world_rank == world.rank(); });
  const int mesh_rank = static_cast<int>(me - places.begin());
  options.node = me->node;
  std::unique_ptr<ProcessGroup> group = make_mpi_group(world.split(0, mesh_rank), pool, "world", options);
  if (backend) group = backend(std::move(group));
  return Mesh(std::move(group), geometry, std::move(places));
}

}  // namespace mica
