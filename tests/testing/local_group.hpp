// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "mica/comm/process_group.hpp"

namespace mica {

struct LocalOptions {
  /// A rank that waits this long for the others gives up with an Error that names the missing ranks.
  std::chrono::milliseconds stall_timeout{60'000};
  /// One rank communicates as more would, and so do groups that stand on its own: a backend on a machine of one GPU.
  bool communicates_alone = false;
  /// allocate_parts() gives memory that the ranks share.
  bool shares_memory = false;
};

/// N ranks as threads of one process: real collectives through shared memory, for fast tests.
/// Waiting ranks sleep, so that many ranks run on few cores. What the ranks pass to one collective is compared
/// (kind, label, sizes, dtype, op, root): a DesyncError names the ranks that differ.
/// A rank that throws ends all: the others' next or pending collective throws an Error naming that rank (or one that it
/// took along). So does a rank that gives up a group (by returning from `body`, say) while others wait for it.
/// @param body  run on N threads with that rank's world group. Its streams and groups end inside it, groups last.
/// @throws the lowest failing rank's own exception (an Error about another rank only if there is no own one).
void run_local_ranks(int num_ranks, const std::function<void(std::unique_ptr<ProcessGroup>)>& body, LocalOptions options = {});

}  // namespace mica
