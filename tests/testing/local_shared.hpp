// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "mica/comm/collective.hpp"
#include "mica/core/dtype.hpp"

#include "testing/local_group.hpp"
#include "testing/rank_barrier.hpp"

namespace mica {

/// What one rank passes to a collective of a local group; others read it between two barriers.
struct LocalArguments {
  Collective kind = Collective::barrier;
  std::string label = {};
  DType dtype = DType::f32;
  ReduceOp op = ReduceOp::sum;
  int root = 0;
  std::int64_t numel = 0;        ///< of the unsharded side
  const void* source = nullptr;  ///< all_gather: the shard; else the full tensor
  void* target = nullptr;        ///< reduce_scatter: the shard; else the full tensor
  [[nodiscard]] bool matches(const LocalArguments& other) const {
    return kind == other.kind && label == other.label && dtype == other.dtype && op == other.op && root == other.root &&
           numel == other.numel;
  }
  [[nodiscard]] std::string to_string() const;
};

struct LocalShared;

/// All groups of one run_local_ranks(), so that a failing rank reaches those who wait for it in any of them.
class LocalWorld {
 public:
  explicit LocalWorld(LocalOptions options) : options_(options) {}
  [[nodiscard]] const LocalOptions& options() const { return options_; }
  [[nodiscard]] std::shared_ptr<LocalShared> make_shared(std::vector<int> world_ranks);
  /// `world_rank` will take part in nothing any more.
  void fail(int world_rank, const std::string& why);

 private:
  const LocalOptions options_;
  std::mutex mutex_;
  std::vector<std::weak_ptr<LocalShared>> groups_;
};

/// One group, shared by the threads of its ranks.
struct LocalShared {
  LocalShared(std::vector<int> ranks, std::chrono::milliseconds stall_timeout)
      : world_ranks(std::move(ranks)),
        stream_barrier(world_ranks, stall_timeout),
        host_barrier(world_ranks, stall_timeout),
        arguments(world_ranks.size()),
        splits(world_ranks.size()) {}

  struct Split {
    int color = 0;
    int key = 0;
    std::shared_ptr<LocalShared> created;  ///< by the first member
  };

  const std::vector<int> world_ranks;  ///< by rank of this group
  RankBarrier stream_barrier;          ///< for collectives, which workers may run
  RankBarrier host_barrier;            ///< for duplicate() and split(), which the host threads call
  std::vector<LocalArguments> arguments;
  std::vector<Split> splits;
  std::shared_ptr<std::byte> memory;  ///< of allocate_parts(), from the first member to the others
};

}  // namespace mica
