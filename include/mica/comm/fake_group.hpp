// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "mica/comm/process_group.hpp"

namespace mica {

/// Moves nothing and records every call: for the planner, overhead measurements and schedule tests.
/// all_gather and all_to_all write only this rank's own slice of the result; reduce_scatter copies the slice; all_reduce and
/// broadcast leave the data unchanged. Like every group, it does and records nothing with one rank.
struct FakeCall {
  Collective kind;
  std::string label;
  std::int64_t bytes;
  std::string group;
};

class FakeRecorder {
 public:
  std::vector<FakeCall> calls;  ///< in host order, at enqueue
};

/// `recorder` may be null; otherwise it outlives the group, and also gets the calls of groups made from it. split() is refused,
/// since the other ranks' colors are unknown: use subgroup(), as Mesh does.
[[nodiscard]] std::unique_ptr<ProcessGroup> make_fake_group(int rank, int num_ranks, FakeRecorder* recorder);

}  // namespace mica
