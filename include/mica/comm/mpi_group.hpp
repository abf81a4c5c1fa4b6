// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "mica/comm/mesh.hpp"
#include "mica/comm/process_group.hpp"
#include "mica/mpi/communicator.hpp"
#include "mica/mpi/session.hpp"

namespace mica {

/// Which MPI calls a collective becomes. [Note: MPI calls of collectives]
/// One call moves one block: a slice of at most block_bytes per rank. A slice of up to `max_collective_slice_bytes` takes one
/// MPI collective, of a different kind for each, so that tests can count from outside:
///   all_gather -> MPI_Allgather     reduce_scatter -> MPI_Alltoall + own fold     broadcast -> MPI_Bcast     barrier -> MPI_Barrier
///   all_reduce -> MPI_Allgatherv + own fold (up to kSmallAllReduceBytes), else MPI_Alltoallv + own fold + MPI_Allgatherv
///   all_to_all -> MPI_Alltoallw
/// Longer slices go point to point (MPI_Irecv, MPI_Isend, MPI_Wait), which is faster (figures in src/comm/README.md), and in a
/// group that spans nodes cross to each of them once ([Note: collectives by node]). The folds are Mica's own, in the order that
/// [Note: process groups] says, so that the bits do not depend on the MPI library.
struct MpiGroupOptions {
  /// Transfers are split so that no MPI call moves more bytes than this on one rank (MPI counts are ints). Tests use 1 KiB.
  std::int64_t max_call_bytes = std::int64_t{1} << 30;
  /// Upper limit of the staging memory of one reduce-scatter or all-reduce.
  std::int64_t staging_bytes = std::int64_t{16} << 20;
  /// Longer slices go point to point. A very large value keeps every collective countable from outside.
  std::int64_t max_collective_slice_bytes = std::int64_t{32} << 10;
  /// Whether abort() also ends collectives in progress: then everything goes point to point, and waiting ranks poll. (A long
  /// message that its sender has begun cannot be cancelled; the receiver waits for it.)
  bool can_be_aborted = false;
  /// A number for this rank's node, equal on all its ranks. -1: ranks that can share memory, as MPI tells, are a node.
  int node = -1;
  /// Whether groups whose members are all on one node share memory (ProcessGroup::allocate_parts()).
  bool shares_memory = false;
};

/// Why the ranks of a node cannot share so many bytes (MpiGroupOptions::shares_memory); empty if they can. The same text on all of them.
/// @collective over `node`  @param what  needs them, for the text
[[nodiscard]] std::string why_no_shared_memory(const mpi::Communicator& node, const std::string& what, std::int64_t bytes);

inline constexpr std::int64_t kSmallAllReduceBytes = 4096;

/// CPU memory over MPI. Takes ownership of `comm`. @collective over it. `pool` provides the staging memory (role
/// communication). If MPI grants less than MPI_THREAD_MULTIPLE, a collective that does not run on MPI's main thread fails with
/// a ConfigError: make the streams with comm_stream_mode().
[[nodiscard]] std::unique_ptr<ProcessGroup> make_mpi_group(mpi::Communicator comm, Pool& pool, std::string name,
                                                           MpiGroupOptions options = {});

/// Bytes of staging (role communication) that one collective takes while it is enqueued: for the memory plan.
/// @param numel  of the unsharded side.
[[nodiscard]] std::int64_t mpi_staging_bytes(Collective kind, std::int64_t numel, DType dtype, int num_ranks,
                                             const MpiGroupOptions& options = {});

/// The mode for streams that communicate. Without MPI_THREAD_MULTIPLE one thread must make all MPI calls, in host enqueue order
/// on all ranks: then the mode is `inlined`, even if another one is wanted.
[[nodiscard]] StreamMode comm_stream_mode(const mpi::Session& session, StreamMode wanted);

/// Every rank's place, by world rank. @collective
[[nodiscard]] std::vector<RankPlace> find_places(const mpi::Communicator& world);
/// The places in mesh order: by (node's lowest world rank, local rank).
[[nodiscard]] std::vector<RankPlace> mesh_order(std::vector<RankPlace> by_world_rank);

/// Makes the group to use from a group over MPI, of which it takes ownership (gpu_groups.hpp).
using GroupBackend = std::function<std::unique_ptr<ProcessGroup>(std::unique_ptr<ProcessGroup>)>;

/// The mesh over all ranks of `world`, in mesh order, with groups over MPI. @collective
/// @param by_world_rank  places, if known already; found here if empty.
/// @param backend  applied to each group; empty: groups over MPI.
[[nodiscard]] Mesh make_mpi_mesh(const mpi::Communicator& world, ShardSize shard_size, Pool& pool, MpiGroupOptions options = {},
                                 std::vector<RankPlace> by_world_rank = {}, const GroupBackend& backend = {});

}  // namespace mica
