// SPDX-License-Identifier: Apache-2.0
#include "mica/comm/node_map.hpp"

#include <algorithm>
#include <map>

#include "mica/core/error.hpp"
#include "mica/core/rounding.hpp"

namespace mica {

NodeMap::NodeMap(const std::vector<int>& nodes) {
  invariant(!nodes.empty(), "a group has at least one rank");
  std::map<int, int> number_of;
  for (std::size_t rank = 0; rank < nodes.size(); ++rank) {
    const auto [entry, is_new] = number_of.try_emplace(nodes[rank], num_nodes());
    if (is_new) members_.emplace_back();
    auto& members = members_[static_cast<std::size_t>(entry->second)];
    node_of_.push_back(entry->second);
    number_on_node_.push_back(static_cast<int>(members.size()));
    members.push_back(static_cast<int>(rank));
  }
  std::map<std::int64_t, std::int64_t> num_nodes_of;  // by their members
  for (const auto& members : members_) ++num_nodes_of[std::ssize(members)];
  most_members_ = static_cast<int>(num_nodes_of.rbegin()->first);
  for (const auto& [here, unused] : num_nodes_of) {
    std::int64_t sum = -1;  // the node itself does not count
    for (const auto& [there, nodes] : num_nodes_of) sum += nodes * divide_up(there, here);
    most_counterparts_ = std::max(most_counterparts_, static_cast<int>(sum));
  }
}

NodeMap NodeMap::of(const std::vector<int>& ranks) const {
  std::vector<int> nodes;
  for (const int rank : ranks) nodes.push_back(node_of(rank));
  return NodeMap(nodes);
}

int NodeMap::counterpart(int rank, int node) const {
  const std::vector<int>& there = members(node);
  return there[static_cast<std::size_t>(number_on_node_[static_cast<std::size_t>(rank)]) % there.size()];
}

std::int64_t NodeMap::slices_by_node() const {
  std::int64_t sum = 0;
  for (const auto& members : members_) sum += num_ranks() - std::ssize(members);
  return sum;
}

std::int64_t NodeMap::slices_by_rank() const {
  std::int64_t sum = 0;
  for (const auto& members : members_) sum += (num_ranks() - std::ssize(members)) * std::ssize(members);
  return sum;
}

}  // namespace mica
