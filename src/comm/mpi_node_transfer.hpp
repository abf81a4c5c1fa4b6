// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "mica/comm/collective.hpp"
#include "mica/core/dtype.hpp"

#include "mpi_transfer.hpp"

/// Transfers in which what crosses to a node crosses once ([Note: collectives by node] in node_map.hpp), point to point.
namespace mica::detail {

/// As gather_slices(). A slice goes in blocks of at most `block_bytes`: while one is passed on within the node, the next one
/// crosses. @collective
void gather_slices_by_node(const Peers& peers, void* buffer, const Slices& slices, std::int64_t block_bytes);

/// What is added up, and how.
struct Summands {
  ReduceOp op;
  DType dtype;
  /// Of what travels between nodes: a sum of less than 32 bits is rounded once, at its end.
  [[nodiscard]] DType travels_as() const { return op == ReduceOp::sum ? DType::f32 : dtype; }
};

/// Rank r's `result` becomes the sum (or maximum) over ranks of slice r of their `buffer`; it may be the own slice itself.
/// @param staging  longest slice's elements x node_staging_bytes() @collective
void reduce_slices_by_node(const Peers& peers, const Summands& summands, const void* buffer, const Slices& slices, void* staging,
                           void* result);

/// Bytes of staging for each element of a slice, on every rank alike. At most 8 x the ranks.
[[nodiscard]] std::int64_t node_staging_bytes(const NodeMap& nodes, const Summands& summands);

/// Whether fewer bytes cross than if every rank sent to every other.
[[nodiscard]] bool reduces_better_by_node(const NodeMap& nodes, const Summands& summands);

}  // namespace mica::detail
