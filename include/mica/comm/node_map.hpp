// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace mica {

/// Which ranks of a group share a node. [Note: collectives by node]
/// Sending the same data to each of a node's n ranks takes n times the network traffic of sending it to the node once. So in a
/// group that spans nodes, each rank has a counterpart on every other node: the rank with its number among the node's members
/// (modulo their count). Long slices go between counterparts only, so that each crosses to a node once:
/// - all_gather: a rank sends its slice to its counterparts, which pass it on to the other members on their nodes.
/// - reduce_scatter: on each node, all members send their summand of rank r's slice to r's counterpart, which sends r the sum.
/// - all_reduce: both, block by block.
/// With P ranks, n of them on a node, and full buffers of F bytes, the node sends F * (P - n) / P bytes in a reduce_scatter (n times
/// as many if every rank sent to every other), F * n * (nodes - 1) / P in an all_gather, and the sum of both in an all_reduce.
///
/// Sums: the members of a node are added in rank order, then the nodes' sums in the order of the nodes (of their lowest ranks),
/// all in f32. So two nodes give ((0 + 1) + (2 + 3)), the same order as hybrid sharding by node. Sums of bf16 and fp16 values are
/// sent as f32, which pays off from 3 ranks a node on; with fewer ranks they are added in rank order, like short slices.
class NodeMap {
 public:
  /// @param nodes  each rank's node; any numbers.
  explicit NodeMap(const std::vector<int>& nodes);

  /// The map of a group of some of these ranks. @param ranks  by rank of that group
  [[nodiscard]] NodeMap of(const std::vector<int>& ranks) const;

  [[nodiscard]] int num_ranks() const { return static_cast<int>(node_of_.size()); }
  [[nodiscard]] int num_nodes() const { return static_cast<int>(members_.size()); }
  /// 0, 1, ... in the order of the nodes' lowest ranks.
  [[nodiscard]] int node_of(int rank) const { return node_of_[static_cast<std::size_t>(rank)]; }
  /// Ascending.
  [[nodiscard]] const std::vector<int>& members(int node) const { return members_[static_cast<std::size_t>(node)]; }
  /// The rank's counterpart on that node; on its own node, the rank itself.
  [[nodiscard]] int counterpart(int rank, int node) const;

  /// Several nodes, and several ranks on one of them.
  [[nodiscard]] bool has_neighbors_and_nodes() const { return num_nodes() > 1 && num_nodes() < num_ranks(); }
  /// The most ranks on a node.
  [[nodiscard]] int most_members() const { return most_members_; }
  /// The largest number of ranks on other nodes that share one counterpart.
  [[nodiscard]] int most_counterparts() const { return most_counterparts_; }
  /// Slices that all nodes together send to other nodes in a reduce_scatter: between counterparts, or from every rank to every other.
  [[nodiscard]] std::int64_t slices_by_node() const;
  [[nodiscard]] std::int64_t slices_by_rank() const;

 private:
  std::vector<int> node_of_;               // by rank
  std::vector<int> number_on_node_;        // by rank
  std::vector<std::vector<int>> members_;  // by node
  int most_members_ = 0, most_counterparts_ = 0;
};

}  // namespace mica
