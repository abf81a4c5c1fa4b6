// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "mica/comm/process_group.hpp"

namespace mica {

/// Sends nothing and records every call: for the planner, overhead measurements and schedule tests.
/// all_gather and all_to_all write only this rank's own slice of the result; reduce_scatter copies the slice; all_reduce and
/// broadcast leave the data unchanged. Like every group, it records nothing if it has one rank.
struct FakeCall {
  Collective kind;
  std::string label;
  std::int64_t bytes;  ///< of the unsharded side
  std::string group;
  DType dtype;
  std::shared_ptr<const std::vector<int>> members;  ///< as ranks of the group from make_fake_group()
};

class FakeRecorder {
 public:
  std::vector<FakeCall> calls;  ///< in host order, at enqueue
  /// Called for each collective before its task is enqueued on that stream; may be empty.
  std::function<void(const FakeCall& call, Stream& stream)> on_call{};
};

struct FakeGroupOptions {
  /// Of each rank: those of one node share memory (ProcessGroup::shares_memory()), where the other members have always written and released
  /// their parts, whose contents are undefined. Empty: none do.
  std::vector<int> nodes{};
  /// allocate() takes blocks of their own for buffers of at least this size, as groups of GPUs do (NcclOptions::register_from_bytes), from
  /// pools that have them (BlockMemory).
  std::int64_t own_blocks_from = std::numeric_limits<std::int64_t>::max();
};

/// `recorder` may be null; otherwise it outlives the group, and also gets the calls of groups made from it. split() is refused,
/// since the other ranks' colors are unknown: use subgroup(), as Mesh does.
[[nodiscard]] std::unique_ptr<ProcessGroup> make_fake_group(int rank, int num_ranks, FakeRecorder* recorder, FakeGroupOptions options = {});

}  // namespace mica
