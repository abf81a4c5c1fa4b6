// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "mica/comm/collective.hpp"
#include "mica/core/dtype.hpp"

#include "mpi_transfer.hpp"

/// Point-to-point transfers that send data to another node only once ([Note: collectives by node] in node_map.hpp).
namespace mica::detail {

/// As gather_slices(). Slices are sent in blocks of at most `block_bytes`: while one is passed on within the node, the next one
/// comes from the other nodes. @collective
void gather_slices_by_node(const Peers& peers, void* buffer, const Slices& slices, std::int64_t block_bytes);

/// What is reduced, and how.
struct Summands {
  ReduceOp op;
  DType dtype;
  /// The dtype sent between nodes: f32 for sums, so that they are rounded once, at the end.
  [[nodiscard]] DType travels_as() const { return op == ReduceOp::sum ? DType::f32 : dtype; }
};

/// Rank r's `result` becomes the sum (or maximum) over ranks of slice r of their `buffer`; it may be this rank's slice of `buffer`.
/// @param staging  longest slice's elements x node_staging_bytes() @collective
void reduce_slices_by_node(const Peers& peers, const Summands& summands, const void* buffer, const Slices& slices, void* staging,
                           void* result);

/// Bytes of staging for each element of a slice, equal on all ranks. At most 8 x the number of ranks.
[[nodiscard]] std::int64_t node_staging_bytes(const NodeMap& nodes, const Summands& summands);

/// Whether fewer bytes go between nodes than if every rank sent to every other.
[[nodiscard]] bool reduces_better_by_node(const NodeMap& nodes, const Summands& summands);

}  // namespace mica::detail
