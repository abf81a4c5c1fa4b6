// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <mpi.h>

#include "mica/comm/collective.hpp"
#include "mica/comm/node_map.hpp"
#include "mica/core/dtype.hpp"

namespace mica::detail {

inline std::byte* at(void* data, std::int64_t bytes) { return static_cast<std::byte*>(data) + bytes; }
inline const std::byte* at(const void* data, std::int64_t bytes) { return static_cast<const std::byte*>(data) + bytes; }

/// One block of a buffer, divided into a slice for each rank: rank r's slice begins offset[r] bytes into the buffer.
struct Slices {
  std::vector<std::int64_t> offset;
  std::vector<std::int64_t> bytes;
  /// Equal slices at a constant distance: for MPI_Allgather and MPI_Alltoall. Others need the v variants.
  bool is_regular = false;

  /// Slices of `bytes`, `stride` bytes apart, the first one `begin` bytes into the buffer.
  static Slices regular(int num_ranks, std::int64_t begin, std::int64_t stride, std::int64_t bytes);
  /// numel elements from `begin`, divided over the ranks as evenly as possible (later slices are longer by at most one element).
  static Slices even(int num_ranks, std::int64_t begin, std::int64_t numel, std::int64_t element_bytes);

  [[nodiscard]] std::int64_t longest() const;
};

/// A communicator and what the transfers need to know of it.
struct Peers {
  MPI_Comm comm;
  int rank;
  int num_ranks;
  std::int64_t max_collective_slice_bytes;  ///< longer slices go point to point
  const NodeMap& nodes;
  std::atomic<std::int64_t>& bytes_to_other_nodes;  ///< incremented by what is sent point to point
  /// If not null, everything goes point to point, and waits throw once it is set.
  const std::atomic<bool>* is_aborted = nullptr;

  [[nodiscard]] bool uses_point_to_point(std::int64_t longest) const {
    return is_aborted != nullptr || longest > max_collective_slice_bytes;
  }
};

/// All-gather in place: every rank's slice of `buffer` is sent to all others. @collective
void gather_slices(const Peers& peers, void* buffer, const Slices& slices);

/// Rank r sends slice k of its `buffer` to rank k. Afterwards the returned pointers hold, in rank order, this rank's
/// slice of every rank's buffer: in `staging` (num_ranks x its bytes), the own one possibly in `buffer`. @collective
[[nodiscard]] std::vector<const void*> exchange_slices(const Peers& peers, const void* buffer, const Slices& slices, void* staging);

/// Rank r sends slice k of `sent` to rank k, which receives it in slice r of `received`. @collective
void swap_slices(const Peers& peers, const void* sent, void* received, const Slices& slices);

/// Broadcasts at most 2 GiB - 1 bytes. @collective
void broadcast_bytes(const Peers& peers, void* data, std::int64_t bytes, int root);

/// A barrier. @collective
void wait_for_peers(const Peers& peers);

/// Gathers `bytes` bytes of every rank into `all`, in rank order, by MPI_Allgatherv. @collective
void gather_small(const Peers& peers, const void* mine, std::int64_t bytes, void* all);

/// The sum or maximum of the sources, by fold_sum() or fold_max().
void fold(ReduceOp op, const std::vector<const void*>& sources, void* dst, std::int64_t numel, DType dtype);

}  // namespace mica::detail
