#pragma once

#include <memory>
#include <string>
#include <vector>

#include "mica/comm/mesh.hpp"
#include "mica/comm/process_group.hpp"
#include "mica/mpi/communicator.hpp"

namespace mica {

struct MpiGroupOptions {
  /// Transfers are split so that no MPI call moves more elements than this (MPI counts are ints). Tests use 1 KiB worth.
  std::int64_t max_call_bytes = std::int64_t{1} << 30;
  /// Staging memory of a reduce-scatter or all-reduce, per group.
  std::int64_t staging_bytes = std::int64_t{16} << 20;
};

/// CPU memory over MPI. @collective over `comm`, which is taken over. `pool` provides the staging memory (role communication).
[[nodiscard]] std::unique_ptr<ProcessGroup> make_mpi_group(mpi::Communicator comm, Pool& pool, std::string name,
                                                           MpiGroupOptions options = {});

/// Every rank's place, by world rank. @collective
[[nodiscard]] std::vector<RankPlace> find_places(const mpi::Communicator& world);
/// The places in mesh order: by (node's lowest world rank, local rank).
[[nodiscard]] std::vector<RankPlace> mesh_order(std::vector<RankPlace> by_world_rank);

}  // namespace mica
