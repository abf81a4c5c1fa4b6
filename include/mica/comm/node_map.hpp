// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace mica {

/// Which ranks of a group share a node. [Note: collectives by node]
/// Between nodes, a message to each rank of a node costs what one message to the node would, times its ranks. So in a group
/// that spans nodes each rank has a counterpart on every other node: the one with its number among the node's members (modulo
/// their count). Long slices pass through counterparts alone, and cross to a node once:
/// - all_gather: a slice goes to the counterparts of its rank, who pass it on to the other members on their nodes.
/// - reduce_scatter: on each node, what is to be added to rank r's slice goes to r's counterpart there, who sends r the sum.
/// - all_reduce: the two, block by block.
/// With P ranks, n of them on a node, and full buffers of F bytes, the node sends F * (P - n) / P in a reduce_scatter, where
/// a message to each rank would make it n times as many; F * n * (nodes - 1) / P in an all_gather; in an all_reduce both.
///
/// Sums: the members of a node are added in rank order, then the nodes' sums in the order of the nodes (of their lowest ranks),
/// all in f32, so that ((0 + 1) + (2 + 3)) on two nodes is the order that hybrid sharding by node has, too. Sums of bf16 and
/// fp16 travel in f32, which pays from 3 ranks a node on; with fewer they are added in rank order, like short slices.
class NodeMap {
 public:
  /// @param nodes  the node of each rank, as any number.
  explicit NodeMap(const std::vector<int>& nodes);

  /// Of a group of some of these ranks. @param ranks  by rank of that group
  [[nodiscard]] NodeMap of(const std::vector<int>& ranks) const;

  [[nodiscard]] int num_ranks() const { return static_cast<int>(node_of_.size()); }
  [[nodiscard]] int num_nodes() const { return static_cast<int>(members_.size()); }
  /// 0, 1, ... in the order of the nodes' lowest ranks.
  [[nodiscard]] int node_of(int rank) const { return node_of_[static_cast<std::size_t>(rank)]; }
  /// Ascending.
  [[nodiscard]] const std::vector<int>& members(int node) const { return members_[static_cast<std::size_t>(node)]; }
  /// Of the rank on that node; on its own node that is the rank itself.
  [[nodiscard]] int counterpart(int rank, int node) const;

  /// Several nodes, and several ranks on one of them.
  [[nodiscard]] bool has_neighbors_and_nodes() const { return num_nodes() > 1 && num_nodes() < num_ranks(); }
  /// The most ranks on a node.
  [[nodiscard]] int most_members() const;
  /// The most ranks on other nodes for which one rank is the counterpart.
  [[nodiscard]] int most_counterparts() const;
  /// Slices that all nodes together send in a reduce_scatter: by counterparts, or from every rank to every other.
  [[nodiscard]] std::int64_t slices_by_node() const;
  [[nodiscard]] std::int64_t slices_by_rank() const;

 private:
  std::vector<int> node_of_;               // by rank
  std::vector<int> number_on_node_;        // by rank
  std::vector<std::vector<int>> members_;  // by node
};

}  // namespace mica
