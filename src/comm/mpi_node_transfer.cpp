// SPDX-License-Identifier: Apache-2.0
#include "mpi_node_transfer.hpp"

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "mica/core/rounding.hpp"
#include "mica/tensor/host_math.hpp"

#include "mpi_requests.hpp"

namespace mica::detail {
namespace {

std::int64_t offset_of(const Slices& slices, int rank) { return slices.offset[static_cast<std::size_t>(rank)]; }
std::int64_t bytes_of(const Slices& slices, int rank) { return slices.bytes[static_cast<std::size_t>(rank)]; }

/// The part of each slice from `begin` on, at most `bytes` long.
Slices part_of(const Slices& slices, std::int64_t begin, std::int64_t bytes) {
  Slices part = slices;
  for (std::size_t r = 0; r < part.bytes.size(); ++r) {
    part.offset[r] += begin;
    part.bytes[r] = std::clamp<std::int64_t>(part.bytes[r] - begin, 0, bytes);
  }
  return part;
}

/// Begins to exchange slices with the counterparts on other nodes.
std::unique_ptr<Requests> cross(const Peers& peers, void* buffer, const Slices& slices) {
  auto crossing = std::make_unique<Requests>(peers);
  const int here = peers.nodes.node_of(peers.rank);
  for (int r = 0; r < peers.num_ranks; ++r) {
    if (peers.nodes.node_of(r) == here || peers.nodes.counterpart(r, here) != peers.rank) continue;
    crossing->receive(at(buffer, offset_of(slices, r)), bytes_of(slices, r), r);
  }
  for (int k = 1; k < peers.nodes.num_nodes(); ++k) {
    const int to = peers.nodes.counterpart(peers.rank, (here + k) % peers.nodes.num_nodes());
    crossing->send(at(buffer, offset_of(slices, peers.rank)), bytes_of(slices, peers.rank), to);
  }
  return crossing;
}

/// Sends this rank's slice, and those that it received from other nodes, to the other members on its node.
void pass_on(const Peers& peers, void* buffer, const Slices& slices) {
  const int here = peers.nodes.node_of(peers.rank);
  Requests passing(peers);
  for (int r = 0; r < peers.num_ranks; ++r) {
    const int from = peers.nodes.counterpart(r, here);
    if (from != peers.rank) passing.receive(at(buffer, offset_of(slices, r)), bytes_of(slices, r), from);
  }
  for (int r = 0; r < peers.num_ranks; ++r) {
    if (peers.nodes.counterpart(r, here) != peers.rank) continue;
    for (const int to : peers.nodes.members(here)) {
      if (to != peers.rank) passing.send(at(buffer, offset_of(slices, r)), bytes_of(slices, r), to);
    }
  }
  passing.wait_for_all();
}

/// The memory of a reduction on one rank, in equal slots: one for each node's sum of this rank's slice, then those for sums that go
/// to other nodes, one for conversions, and those for summands of the node's other members.
class Slots {
 public:
  Slots(const NodeMap& nodes, const Summands& summands, std::int64_t numel, void* staging)
      : sum_bytes_(numel * dtype_bytes(summands.travels_as())),
        summand_bytes_(numel * dtype_bytes(summands.dtype)),
        num_sums_(nodes.num_nodes()),
        num_outgoing_(nodes.most_counterparts()),
        num_converted_(num_converted_of(summands)),
        staging_(staging) {}

  /// Bytes of all slots for each element.
  static std::int64_t bytes_per_element(const NodeMap& nodes, const Summands& summands) {
    return (nodes.num_nodes() + nodes.most_counterparts() + num_converted_of(summands)) * dtype_bytes(summands.travels_as()) +
           (nodes.most_members() - 1) * dtype_bytes(summands.dtype);
  }

  [[nodiscard]] void* sum(int node) const { return at(staging_, node * sum_bytes_); }
  [[nodiscard]] void* outgoing(int i) const { return at(staging_, (num_sums_ + i) * sum_bytes_); }
  [[nodiscard]] void* converted() const { return outgoing(num_outgoing_); }
  [[nodiscard]] void* summand(int i) const { return at(outgoing(num_outgoing_ + num_converted_), i * summand_bytes_); }

 private:
  static int num_converted_of(const Summands& summands) { return summands.travels_as() == summands.dtype ? 0 : 1; }

  std::int64_t sum_bytes_;
  std::int64_t summand_bytes_;
  int num_sums_;
  int num_outgoing_;
  int num_converted_;
  void* staging_;
};

class ReductionByNode final : public PendingReduction {
 public:
  ReductionByNode(const Peers& peers, const Summands& summands, const void* buffer, const Slices& slices, void* staging)
      : peers_(peers),
        summands_(summands),
        buffer_(buffer),
        slices_(slices),
        slots_(peers.nodes, summands, slices.longest() / dtype_bytes(summands.dtype), staging),
        here_(peers.nodes.node_of(peers.rank)),
        crossing_(peers) {
    const int num_nodes = peers_.nodes.num_nodes();
    for (int node = 0; node < num_nodes; ++node) {
      if (node == here_) continue;
      crossing_.receive(slots_.sum(node), numel_of(peers_.rank) * dtype_bytes(summands_.travels_as()),
                        peers_.nodes.counterpart(peers_.rank, node));
    }
    for (int k = 1; k < num_nodes; ++k) add_up_for((here_ + k) % num_nodes);
    add_up_for(here_);
  }

  void finish(void* result) override {
    crossing_.wait_for_all();
    const std::int64_t numel = numel_of(peers_.rank);
    const DType travels_as = summands_.travels_as();
    std::vector<const void*> sums;
    for (int node = 0; node < peers_.nodes.num_nodes(); ++node) sums.push_back(slots_.sum(node));
    if (travels_as == summands_.dtype) return fold(summands_.op, sums, result, numel, travels_as);
    fold(summands_.op, sums, slots_.converted(), numel, travels_as);
    convert(slots_.converted(), travels_as, result, summands_.dtype, numel);
  }

 private:
  [[nodiscard]] std::int64_t numel_of(int rank) const { return bytes_of(slices_, rank) / dtype_bytes(summands_.dtype); }

  /// Sums this node's summands of the slices of that node's ranks: as many slices at a time as there are members here, since each is
  /// the counterpart of one rank.
  void add_up_for(int node) {
    const std::vector<int>& ranks = peers_.nodes.members(node);
    const std::vector<int>& here = peers_.nodes.members(here_);
    for (std::size_t first = 0; first < ranks.size(); first += here.size()) {
      const std::size_t end = std::min(ranks.size(), first + here.size());
      int mine = -1;  // the rank whose slice this rank sums
      Requests meeting(peers_);
      std::vector<const void*> sources;
      for (std::size_t i = first; i < end; ++i) {
        if (peers_.nodes.counterpart(ranks[i], here_) == peers_.rank) mine = ranks[i];
      }
      for (int slot = 0; const int from : here) {
        if (mine < 0) break;
        sources.push_back(from == peers_.rank ? at(buffer_, offset_of(slices_, mine)) : slots_.summand(slot));
        if (from != peers_.rank) meeting.receive(slots_.summand(slot++), bytes_of(slices_, mine), from);
      }
      for (std::size_t i = first; i < end; ++i) {
        if (ranks[i] == mine) continue;
        meeting.send(at(buffer_, offset_of(slices_, ranks[i])), bytes_of(slices_, ranks[i]), peers_.nodes.counterpart(ranks[i], here_));
      }
      meeting.wait_for_all();
      if (mine < 0) continue;
      if (node == here_) {
        add_up(sources, slots_.sum(here_), numel_of(mine));
        continue;
      }
      void* const sum = slots_.outgoing(num_sent_++);
      add_up(sources, sum, numel_of(mine));
      crossing_.send(sum, numel_of(mine) * dtype_bytes(summands_.travels_as()), mine);
    }
  }

  /// In rank order, in the dtype sent between nodes.
  void add_up(const std::vector<const void*>& sources, void* sum, std::int64_t numel) const {
    const DType travels_as = summands_.travels_as();
    if (travels_as == summands_.dtype) return fold(summands_.op, sources, sum, numel, travels_as);
    convert(sources.front(), summands_.dtype, sum, travels_as, numel);
    for (std::size_t i = 1; i < sources.size(); ++i) {
      convert(sources[i], summands_.dtype, slots_.converted(), travels_as, numel);
      fold(summands_.op, {sum, slots_.converted()}, sum, numel, travels_as);
    }
  }

  const Peers& peers_;
  Summands summands_;
  const void* buffer_;
  Slices slices_;
  Slots slots_;
  int here_;
  int num_sent_ = 0;
  Requests crossing_;
};

}  // namespace

void gather_slices_by_node(const Peers& peers, void* buffer, const Slices& slices, std::int64_t block_bytes) {
  const std::int64_t longest = slices.longest();
  const auto block = [&](std::int64_t begin) { return part_of(slices, begin, block_bytes); };
  auto crossing = cross(peers, buffer, block(0));
  for (std::int64_t begin = 0; begin < longest; begin += block_bytes) {
    auto next = begin + block_bytes < longest ? cross(peers, buffer, block(begin + block_bytes)) : nullptr;
    crossing->wait_for_all();
    pass_on(peers, buffer, block(begin));
    crossing = std::move(next);
  }
}

std::unique_ptr<PendingReduction> begin_reduction_by_node(const Peers& peers, const Summands& summands, const void* buffer,
                                                          const Slices& slices, void* staging) {
  return std::make_unique<ReductionByNode>(peers, summands, buffer, slices, staging);
}

std::int64_t node_staging_bytes(const NodeMap& nodes, const Summands& summands) { return Slots::bytes_per_element(nodes, summands); }

bool reduces_better_by_node(const NodeMap& nodes, const Summands& summands) {
  return nodes.slices_by_node() * dtype_bytes(summands.travels_as()) < nodes.slices_by_rank() * dtype_bytes(summands.dtype);
}

}  // namespace mica::detail
