// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
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

/// Rank r sends slice k of `sent` to rank k, which receives it in slice r of `received`. @collective
void swap_slices(const Peers& peers, const void* sent, void* received, const Slices& slices);

/// Broadcasts at most 2 GiB - 1 bytes. @collective
void broadcast_bytes(const Peers& peers, void* data, std::int64_t bytes, int root);

/// A barrier. @collective
void wait_for_peers(const Peers& peers);

/// What is reduced, and how.
struct Summands {
  ReduceOp op;
  DType dtype;
  /// The dtype sent between nodes that add up by themselves first: f32 for sums, so that they are rounded once, at the end.
  [[nodiscard]] DType travels_as() const { return op == ReduceOp::sum ? DType::f32 : dtype; }
};

/// The reduction of one block, whose messages are under way: slice r of every rank's buffer becomes their sum (or maximum) on rank r.
/// Several may be under way, if all ranks begin them in the same order, each with its own staging.
class PendingReduction {
 public:
  virtual ~PendingReduction() = default;
  PendingReduction(const PendingReduction&) = delete;
  PendingReduction& operator=(const PendingReduction&) = delete;

  /// Waits for the messages. Called once. @param result  of this rank's slice; it may be this rank's slice of the buffer
  virtual void finish(void* result) = 0;

 protected:
  PendingReduction() = default;
};

/// Each rank sends slice r to rank r, which adds them up in rank order. @param peers  outlives the result
/// @param staging  num_ranks x the bytes of this rank's slice @collective
[[nodiscard]] std::unique_ptr<PendingReduction> begin_reduction(const Peers& peers, const Summands& summands, const void* buffer,
                                                                const Slices& slices, void* staging);

/// Gathers `bytes` bytes of every rank into `all`, in rank order, by MPI_Allgatherv. @collective
void gather_small(const Peers& peers, const void* mine, std::int64_t bytes, void* all);

/// The sum or maximum of the sources, by fold_sum() or fold_max().
void fold(ReduceOp op, const std::vector<const void*>& sources, void* dst, std::int64_t numel, DType dtype);

}  // namespace mica::detail
