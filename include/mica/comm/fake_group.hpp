#pragma once

#include <memory>
#include <string>
#include <vector>

#include "mica/comm/process_group.hpp"

namespace mica {

/// Moves nothing and records every call: for the planner, overhead measurements and schedule tests.
/// all_gather leaves the unsharded buffer as it is apart from this rank's own slice; reduce_scatter copies the slice.
struct FakeCall {
  Collective kind;
  std::string label;
  std::int64_t bytes;
};

class FakeRecorder {
 public:
  std::vector<FakeCall> calls;
};

/// `recorder` may be null; else it outlives the group and gets the calls of all groups split from it as well.
[[nodiscard]] std::unique_ptr<ProcessGroup> make_fake_group(int rank, int num_ranks, FakeRecorder* recorder);

}  // namespace mica
