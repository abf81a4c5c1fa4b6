// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "mpi_transfer.hpp"

/// Point-to-point transfers that send data to another node only once ([Note: collectives by node] in node_map.hpp).
namespace mica::detail {

/// As gather_slices(). Slices are sent in blocks of at most `block_bytes`: while one is passed on within the node, the next one
/// comes from the other nodes. @collective
void gather_slices_by_node(const Peers& peers, void* buffer, const Slices& slices, std::int64_t block_bytes);

/// As begin_reduction(), but adds up within each node first. @param staging  longest slice's elements x node_staging_bytes() @collective
[[nodiscard]] std::unique_ptr<PendingReduction> begin_reduction_by_node(const Peers& peers, const Summands& summands, const void* buffer,
                                                                        const Slices& slices, void* staging);

/// Bytes of staging for each element of a slice, equal on all ranks. At most 8 x the number of ranks.
[[nodiscard]] std::int64_t node_staging_bytes(const NodeMap& nodes, const Summands& summands);

/// Whether fewer bytes go between nodes than if every rank sent to every other.
[[nodiscard]] bool reduces_better_by_node(const NodeMap& nodes, const Summands& summands);

}  // namespace mica::detail
