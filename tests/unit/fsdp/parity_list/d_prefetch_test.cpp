// SPDX-License-Identifier: Apache-2.0
// docs/parity.md D1 (a unit called several times), D2, and units that stay unsharded (D19): what is gathered and reduced when.
#include <algorithm>

#include <gmock/gmock.h>

#include "probe_model.hpp"

namespace mica::fsdp::testing {
namespace {

using ::testing::ElementsAre;

using Prepare = std::function<void(ProbeModel&)>;

/// What happens in the given step on rank 0 of 2, in host order: gathers, reductions and the modules' own notes.
std::vector<std::string> events(int num_layers, const Options& options, const Prepare& prepare = {}, int num_steps = 2) {
  FakeRecorder log;
  RankRig rig(make_fake_group(0, 2, &log));
  ProbeModel model(num_layers, [&](const std::string& what) { log_note(log, what); });
  shard_layers(model, rig.device_mesh(), options);
  if (prepare) prepare(model);
  for (int step = 1; step <= num_steps; ++step) {
    log.calls.clear();
    train_pass(model, rig.context());
    root_of(model).zero_grad();
  }
  return events_of(log);
}

std::ptrdiff_t position(const std::vector<std::string>& list, const std::string& what) {
  return std::find(list.begin(), list.end(), what) - list.begin();
}

std::vector<std::string> in_backward(const std::vector<std::string>& all) {
  // PRE gathers for the root's backward before the root notes it: everything after the last forward.
  auto last = all.end();
  while (last != all.begin() && !(last - 1)->starts_with("forward")) --last;
  return {last, all.end()};
}

// D1: a unit called k = 3 times before one backward: 3 forward all-gathers, 1 in backward, 1 reduce-scatter after its
// last gradient.
TEST(D1Counts, AUnitCalledSeveralTimesIsGatheredOnceInBackward) {
  const auto all = events(3, {.backward_prefetch = BackwardPrefetch::none}, [](ProbeModel& m) { m.order = {0, 1, 0, 2, 0}; });
  EXPECT_THAT(all, ElementsAre("gather root", "gather a", "forward a", "gather b", "forward b", "gather a", "forward a", "gather c",
                               "forward c", "gather a", "forward a",  //
                               "backward root", "gather a", "backward a", "gather c", "backward c", "reduce c", "backward a", "gather b",
                               "backward b", "reduce b", "backward a", "reduce a", "reduce root"));
}

// D2: 12 units: PRE makes 12 attempts, each a gather before the backward of the unit that comes before it.
TEST(D2Prefetch, PreMakesTwelveAttemptsForTwelveUnits) {
  const auto all = in_backward(events(12, {.backward_prefetch = BackwardPrefetch::pre}));
  std::vector<std::string> expected{"gather l", "backward root"};
  for (int i = 11; i >= 0; --i) {
    if (i > 0) expected.push_back("gather " + layer_name(i - 1));
    expected.push_back("backward " + layer_name(i));
    expected.push_back("reduce " + layer_name(i));
  }
  expected.emplace_back("reduce root");
  EXPECT_EQ(all, expected);
  int attempts = position(all, "gather l") < position(all, "backward root") ? 1 : 0;
  for (int i = 11; i > 0; --i)
    attempts += position(all, "gather " + layer_name(i - 1)) < position(all, "backward " + layer_name(i)) ? 1 : 0;
  EXPECT_EQ(attempts, 12);
}

// D2: 12 units: POST makes 11, each between a unit's backward and its reduction; the first unit has none before it.
TEST(D2Prefetch, PostMakesElevenAttemptsForTwelveUnits) {
  const auto all = in_backward(events(12, {.backward_prefetch = BackwardPrefetch::post}));
  std::vector<std::string> expected{"backward root", "gather l"};
  int attempts = 0;
  for (int i = 11; i >= 0; --i) {
    expected.push_back("backward " + layer_name(i));
    if (i > 0) {
      expected.push_back("gather " + layer_name(i - 1));
      ++attempts;
    }
    expected.push_back("reduce " + layer_name(i));
  }
  expected.emplace_back("reduce root");
  EXPECT_EQ(all, expected);
  EXPECT_EQ(attempts, 11);
}

// D2: none = no explicit one.
TEST(D2Prefetch, NoneMakesNoAttempt) {
  const auto all = in_backward(events(12, {.backward_prefetch = BackwardPrefetch::none}));
  for (int i = 11; i > 0; --i) EXPECT_GT(position(all, "gather " + layer_name(i - 1)), position(all, "reduce " + layer_name(i)));
}

// D2: explicit lists replace what the order suggests, in both directions.
TEST(D2Prefetch, ExplicitListsAreFollowed) {
  const auto all = events(4, {.backward_prefetch = BackwardPrefetch::pre}, [](ProbeModel& m) {
    unit_of(*m.layers[0]).set_forward_prefetch({&unit_of(*m.layers[1]), &unit_of(*m.layers[2])});
    unit_of(*m.layers[3]).set_backward_prefetch({&unit_of(*m.layers[2]), &unit_of(*m.layers[1])});
  });
  EXPECT_THAT(all, ElementsAre("gather root", "gather a", "gather b", "gather c", "forward a", "forward b", "forward c", "gather d",
                               "forward d",  //
                               "gather d", "backward root", "gather c", "gather b", "backward d", "reduce d", "backward c", "reduce c",
                               "gather a", "backward b", "reduce b", "backward a", "reduce a", "reduce root"));
}

// D2: a mistargeted unit is never gathered twice: what was prefetched too early is used when its turn comes; one that
// this pass does not need is not gathered at all.
TEST(D2Prefetch, AMistargetedUnitIsGatheredOnce) {
  for (const BackwardPrefetch when : {BackwardPrefetch::pre, BackwardPrefetch::post}) {
    const auto all = events(4, {.backward_prefetch = when}, [](ProbeModel& m) {
      m.order = {0, 1, 3};  // c is not run
      unit_of(*m.layers[3]).set_backward_prefetch({&unit_of(*m.layers[0]), &unit_of(*m.layers[2])});
    });
    const auto backward = in_backward(all);
    for (const char* name : {"gather a", "gather b", "gather d"}) EXPECT_EQ(std::count(backward.begin(), backward.end(), name), 1) << name;
    EXPECT_EQ(std::count(backward.begin(), backward.end(), "gather c"), 0);
    EXPECT_LT(position(backward, "gather a"), position(backward, "backward b"));
  }
}

// D2, as PyTorch has it.
TEST(D2Prefetch, UnitsOfAnotherRootAreRefused) {
  run_local_ranks(1, [](auto world) {
    RankRig rig(std::move(world));
    ProbeModel model(2), other(3);
    shard_layers(model, rig.device_mesh(), {});
    shard_layers(other, rig.device_mesh(), {});
    Unit& unit = unit_of(*model.layers[1]);
    unit.set_forward_prefetch({&unit_of(*other.layers[0])});
    EXPECT_THROW(train_pass(model, rig.context()), Error);
    root_of(model).abandon_step();
    unit.set_forward_prefetch({});
    unit.set_backward_prefetch({&unit_of(*other.layers[2])});
    EXPECT_THROW(train_pass(model, rig.context()), Error);
    root_of(model).abandon_step();
    unit.set_backward_prefetch({});
    train_pass(model, rig.context());
  });
}

TEST(D2Prefetch, PreIsTheDefault) {
  EXPECT_EQ(events(4, {}), events(4, {.backward_prefetch = BackwardPrefetch::pre}));
  EXPECT_NE(events(4, {}), events(4, {.backward_prefetch = BackwardPrefetch::none}));
}

// D19: with set_reshard_after_backward(false) a unit stays unsharded, and the next forward gathers nothing for it,
// until masters are about to be written.
TEST(D19ByHand, AUnitMayStayUnshardedAfterBackward) {
  const auto all = events(3, {}, [](ProbeModel& m) { unit_of(*m.layers[1]).set_reshard_after_backward(false); });
  EXPECT_EQ(std::count(all.begin(), all.end(), "gather b"), 1);  // in step 2: for its backward
  EXPECT_EQ(std::count(all.begin(), all.end(), "gather a"), 2);
  run_local_ranks(2, [](auto world) {
    RankRig rig(std::move(world));
    ProbeModel model(2);
    shard_layers(model, rig.device_mesh(), {});
    Unit& a = unit_of(*model.layers[0]);
    a.set_reshard_after_backward(false);
    train_pass(model, rig.context());
    EXPECT_EQ(a.storage()->state(), ShardState::unsharded);
    EXPECT_EQ(unit_of(*model.layers[1]).storage()->state(), ShardState::sharded);
    root_of(model).reshard();
    EXPECT_EQ(a.storage()->state(), ShardState::sharded);
  });
}

}  // namespace
}  // namespace mica::fsdp::testing
