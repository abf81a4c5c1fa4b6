// SPDX-License-Identifier: Apache-2.0
// docs/parity.md F5: where a rank stops in the middle of a step, the groups of the others say who waits, for which unit's
// collective, and its own say how far it came.
#include <chrono>
#include <functional>
#include <future>
#include <thread>

#include <gmock/gmock.h>

#include "probe_model.hpp"

namespace mica::fsdp::testing {
namespace {

using ::testing::HasSubstr;
using GroupOf = std::function<ProcessGroup&(DeviceMesh&)>;

/// What the group says it waits for: as soon as `part` is in it, at the latest after a minute.
std::string pending_with(const ProcessGroup& group, const std::string& part) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  for (;;) {
    const std::string text = group.describe_pending();
    if (text.find(part) != std::string::npos || std::chrono::steady_clock::now() > deadline) return text;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

/// Rank 1's host stops at `place` in the second step until rank 0 has seen what it waits for.
void expect_named(const std::string& place, const GroupOf& group_of, const std::string& of_rank_0, const std::string& of_rank_1) {
  std::promise<void> seen;
  run_local_ranks(2, [&](auto world) {
    RankRig rig(std::move(world), 0, {}, StreamMode::threaded);
    bool may_stop = false;
    ProbeModel model(3, [&](const std::string& what) {
      if (!may_stop || rig.rank() == 0 || what != place) return;
      EXPECT_EQ(seen.get_future().wait_for(std::chrono::seconds(60)), std::future_status::ready);
      EXPECT_THAT(pending_with(group_of(rig.device_mesh()), of_rank_1), HasSubstr(of_rank_1));
    });
    shard_layers(model, rig.device_mesh(), {.root = RootOptions{.limit_all_gathers = false}});  // the host goes on without rank 1
    train_pass(model, rig.context());                                                           // the first one agrees on the order
    root_of(model).zero_grad();
    may_stop = true;
    train_pass(model, rig.context());
    if (rig.rank() == 0) {
      EXPECT_THAT(pending_with(group_of(rig.device_mesh()), of_rank_0), HasSubstr(of_rank_0));
      seen.set_value();
    }
    rig.compute().synchronize();
  });
}

// A step gathers the root and a, b, c, then c, b, a (docs/parity.md D1): the second one's gather of c is the 11th.
TEST(F5Hang, InAForwardNamesRankUnitAndGather) {
  expect_named(
      "forward b", [](DeviceMesh& mesh) -> ProcessGroup& { return mesh.unshard_group(); },
      "group 'shard/unshard' (rank 0 of 2): #11 all_gather 'c' (24 bytes) running for ",
      "group 'shard/unshard' (rank 1 of 2): nothing is pending; last was #10 all_gather 'b' (24 bytes) done ");
}

// It reduces c, b, a and the root: the second one's reduction of b is the 6th.
TEST(F5Hang, InABackwardNamesRankUnitAndReduction) {
  expect_named(
      "backward b", [](DeviceMesh& mesh) -> ProcessGroup& { return mesh.reduce_group(); },
      "group 'shard/reduce' (rank 0 of 2): #6 reduce_scatter 'b' (24 bytes) running for ",
      "group 'shard/reduce' (rank 1 of 2): nothing is pending; last was #5 reduce_scatter 'c' (24 bytes) done ");
}

}  // namespace
}  // namespace mica::fsdp::testing
