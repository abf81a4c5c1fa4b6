// SPDX-License-Identifier: Apache-2.0
// docs/parity.md C3, D4 and D13: ranks that disagree, what is not reduced, and steps that are given up.
#include <fstream>
#include <mutex>
#include <sstream>
#include <stdexcept>

#include <gmock/gmock.h>

#include "probe_model.hpp"
#include "support/temporary_folder.hpp"

namespace mica::fsdp::testing {
namespace {

using mica::test::TemporaryFolder;
using ::testing::HasSubstr;

/// The error that each rank of `num_ranks` meets.
std::vector<std::string> errors_of_ranks(int num_ranks, const std::function<void(RankRig&)>& body) {
  std::vector<std::string> texts(static_cast<std::size_t>(num_ranks));
  run_local_ranks(num_ranks, [&](auto world) {
    RankRig rig(std::move(world));
    const auto rank = static_cast<std::size_t>(rig.rank());
    try {
      body(rig);
    } catch (const Error& error) {
      texts[rank] = error.what();
    }
  });
  return texts;
}

// D4: a mismatch in the first training step is an error on all ranks naming both ranks and both units' parameters.
TEST(D4Order, AMismatchInTheFirstStepIsAnErrorOnAllRanks) {
  for (const int num_ranks : {2, 3, 4}) {
    const auto texts = errors_of_ranks(num_ranks, [](RankRig& rig) {
      ProbeModel model(3);
      shard_layers(model, rig.device_mesh(), {});
      if (rig.rank() == 1) model.order = {0, 2, 1};
      train_pass(model, rig.context());
    });
    for (const std::string& text : texts) {
      EXPECT_THAT(text, HasSubstr("rank 0 is about to run the forward of unit b (parameters b.weight)"));
      EXPECT_THAT(text, HasSubstr("rank 1 is about to run the forward of unit c (parameters c.weight)"));
    }
  }
}

// D2, D19: ranks that gather other units than the others would take each other's blocks where sizes agree: an error on
// all ranks naming both.
TEST(D4Order, RanksThatGatherOtherUnitsAreAnErrorOnAllRanks) {
  using Differ = std::function<void(ProbeModel&, bool)>;
  const auto unit = [](ProbeModel& m, int i) { return &unit_of(*m.layers[static_cast<std::size_t>(i)]); };
  const std::vector<std::pair<Differ, std::string>> cases{
      {[&](ProbeModel& m, bool other) { unit(m, 0)->set_forward_prefetch({unit(m, other ? 2 : 1)}); },
       "before the forward of unit a (parameters a.weight) rank 0 has unsharded: root; prefetches: b; strategy "
       "full_shard, rank 1 "
       "has unsharded: root; prefetches: c"},
      {[&](ProbeModel& m, bool other) { unit(m, 2)->set_backward_prefetch({unit(m, other ? 0 : 1)}); },
       "before the backward of unit c (parameters c.weight) rank 0 has unsharded: root c; prefetches: b; strategy "
       "full_shard, "
       "rank 1 has unsharded: root c; prefetches: a"},
      {[&](ProbeModel& m, bool other) { static_cast<void>(unit(m, other ? 2 : 1)->unshard()); },
       "rank 0 is about to unshard by hand unit b (parameters b.weight), rank 1 is about to unshard by hand unit c"},
      {[&](ProbeModel& m, bool other) {
         if (!other) static_cast<void>(unit(m, 1)->unshard());
       },
       "rank 0 is about to unshard by hand unit b (parameters b.weight), rank 1 is about to run the forward of unit "
       "root"},
      {[&](ProbeModel& m, bool other) {
         static_cast<void>(unit(m, 1)->unshard());
         if (other) unit(m, 1)->reshard();
       },
       "before the forward of unit root (parameters weight) rank 0 has unsharded: b; prefetches: none; strategy "
       "full_shard, rank 1 "
       "has unsharded: none"},
  };
  for (const auto& [differ, expected] : cases) {
    for (const int num_ranks : {2, 3}) {
      const auto texts = errors_of_ranks(num_ranks, [&, &differ = differ](RankRig& rig) {
        ProbeModel model(3);
        shard_layers(model, rig.device_mesh(), {});
        differ(model, rig.rank() == 1);
        train_pass(model, rig.context());
      });
      for (const std::string& text : texts) EXPECT_THAT(text, HasSubstr(expected));
    }
  }
  const auto texts = errors_of_ranks(2, [](RankRig& rig) {
    ProbeModel model(3);
    shard_layers(model, rig.device_mesh(), {.forward_prefetch = rig.rank() == 1});
    train_pass(model, rig.context());
  });
  for (const std::string& text : texts)
    EXPECT_THAT(text, HasSubstr("prefetches: none; strategy full_shard, rank 1 has unsharded: none; prefetches: the next one"));
}

// Each unit's own way to prefetch is compared, not the root's.
TEST(D4Order, AUnitThatPrefetchesOtherwiseIsAnErrorOnAllRanks) {
  const auto texts = errors_of_ranks(2, [](RankRig& rig) {
    ProbeModel model(3);
    for (std::size_t i = 0; i < model.layers.size(); ++i) {
      const bool is_other = i == 2 && rig.rank() == 1;
      fully_shard(*model.layers[i], rig.device_mesh(), {.backward_prefetch = is_other ? BackwardPrefetch::none : BackwardPrefetch::pre});
    }
    fully_shard(model, rig.device_mesh(), {});
    root_of(model).initialize(1);
    train_pass(model, rig.context());
  });
  for (const std::string& text : texts) {
    EXPECT_THAT(text, HasSubstr("before the backward of unit c (parameters c.weight) rank 0 has unsharded: root c; prefetches: "
                                "the next one, before; strategy full_shard, rank 1 has unsharded: root c; prefetches: none"));
  }
}

/// What the rank logs in steps of given orders.
using Between = std::function<void(ProbeModel&, RankRig&)>;
std::string warnings_of(const std::vector<std::vector<int>>& orders, const Between& between = {}, const Between& before = {}) {
  const TemporaryFolder folder;
  std::string text;
  run_local_ranks(2, [&](auto world) {
    const std::string path = folder / fmt::format("log-{}", world->rank());
    RankRig rig(std::move(world), 0, Logger::to_stderr(LogLevel::warn, "").with_file(path));
    ProbeModel model(3);
    shard_layers(model, rig.device_mesh(), {});
    if (before) before(model, rig);
    for (const auto& order : orders) {
      model.order = order;
      train_pass(model, rig.context());
      root_of(model).zero_grad();
      if (between) between(model, rig);
    }
    rig.compute().synchronize();
    if (rig.rank() != 1) return;
    std::stringstream all;
    all << std::ifstream(path).rdbuf();
    text = all.str();
  });
  return text;
}

std::ptrdiff_t num_lines(const std::string& text) { return std::count(text.begin(), text.end(), '\n'); }

// D4: later, every deviation in the first deviating step warns, with rank, step one's order and the order so far; after
// that silent.
TEST(D4Order, TheFirstDeviatingStepWarns) {
  const std::string text = warnings_of({{0, 1, 2}, {0, 1, 2}, {0, 2, 1, 0}, {2, 1, 0}, {1, 0, 2}});
  EXPECT_EQ(num_lines(text), 3) << text;
  EXPECT_THAT(
      text,
      HasSubstr("rank 1: unit c runs where step one ran unit b; prefetch follows step one's order: root a b c; so far this step: root a"));
  EXPECT_THAT(text, HasSubstr("unit b runs where step one ran unit c"));
  EXPECT_THAT(text, HasSubstr("unit a runs after the last unit of the first step"));
  EXPECT_EQ(warnings_of({{0, 1, 2}, {0, 1, 2}}), "");
}

// D4: no warning across train and eval, nor for an evaluation before the first training step's backward.
TEST(D4Order, EvaluationsDoNotCount) {
  const auto evaluate = [](ProbeModel& model, RankRig& rig) {
    model.order = {2, 0};
    rig.context().training = false;
    static_cast<void>(model.forward(rig.context(), {input_of(rig.context())}, nullptr));
    rig.context().training = true;
  };
  EXPECT_EQ(warnings_of({{0, 1, 2}, {0, 1, 2}, {0, 1, 2}}, evaluate), "");
}

// D4: the forward of a step that is given up is in no order, also where the step was the first.
TEST(D4Order, AbandonedStepsDoNotCount) {
  for (const bool is_first : {true, false}) {
    const auto abandon = [&](ProbeModel& model, RankRig& rig) {
      model.order = is_first ? std::vector<int>{0, 2, 1} : std::vector<int>{0, 1};  // a step that stopped on its way
      nn::Record record;
      static_cast<void>(model.forward(rig.context(), {input_of(rig.context())}, &record));
      root_of(model).abandon_step();
    };
    const std::string text = warnings_of({{0, 1, 2}, {0, 1, 2}, {0, 1, 2}}, is_first ? Between{} : abandon, is_first ? abandon : Between{});
    EXPECT_EQ(text, "") << (is_first ? "before the first step" : "between steps");
  }
}

// C3, D4: in original-parameter mode an absent gradient leaves its parameter alone, so ranks that disagree on which are
// absent stop in the first backward that reduces; otherwise an absent one is zero, and nothing has to agree.
TEST(C3Gradients, RanksMustAgreeOnWhichParametersHaveOne) {
  for (const bool no_sync_first : {false, true}) {
    const auto step = [&](RankRig& rig, bool use_orig_params) {
      ProbeModel model(3);
      fully_shard(model, rig.device_mesh(), {.root = RootOptions{.use_orig_params = use_orig_params}});  // all of it one unit
      Root& root = root_of(model);
      root.initialize(1);
      if (rig.rank() == 2) model.passes_gradient[1] = false;
      if (no_sync_first) {
        const NoSync no_sync(root);
        train_pass(model, rig.context());
      }
      train_pass(model, rig.context());
    };
    for (const std::string& text : errors_of_ranks(3, [&](RankRig& rig) { step(rig, true); })) {
      EXPECT_THAT(text, HasSubstr("parameter b.weight of unit root has a gradient on rank 0 and none on rank 2"));
      EXPECT_THAT(text, HasSubstr("fsdp.use_orig_params=false"));
    }
    for (const std::string& text : errors_of_ranks(3, [&](RankRig& rig) { step(rig, false); })) EXPECT_EQ(text, "");
  }
}

// D13: a reduction that is missing is found also when the first backward was under no_sync.
TEST(D13Reduction, AMissingOneAfterNoSyncIsAnErrorOnAllRanks) {
  const auto texts = errors_of_ranks(2, [](RankRig& rig) {
    ProbeModel model(2);
    shard_layers(model, rig.device_mesh(), {.strategy = Strategy::no_shard});
    model.order = {0};
    {
      const NoSync no_sync(model);
      train_pass(model, rig.context());
    }
    if (rig.rank() == 0) model.order = {0, 1};
    train_pass(model, rig.context());
  });
  for (const std::string& text : texts) {
    EXPECT_THAT(text, HasSubstr("rank 0 is about to reduce the gradients of unit b (parameters b.weight), rank 1 is about to reduce the "
                                "gradients of unit a (parameters a.weight)"));
  }
}

// D4, D1: the check costs one small all-gather per first-step unshard, and nothing later.
TEST(D4Order, TheCheckCommunicatesInTheFirstStepOnly) {
  run_local_ranks(2, [](auto world) {
    RankRig rig(std::move(world));
    ProbeModel model(3);
    shard_layers(model, rig.device_mesh(), {});
    const auto agreements = [&] { return rig.device_mesh().agreement_group().counts().of(Collective::all_gather); };
    train_pass(model, rig.context());
    EXPECT_EQ(agreements(), 4 + 4 + 4 + 1);  // forwards, backwards, reductions, the end
    train_pass(model, rig.context());
    EXPECT_EQ(agreements(), 13);
  });
}

// D13: a unit that has no gradient on one rank: the missing reduction is an error on all ranks, not a hang.
TEST(D13Reduction, AMissingOneIsAnErrorOnAllRanks) {
  for (const int num_ranks : {2, 3}) {
    for (const std::size_t missing : {0, 2}) {
      const auto texts = errors_of_ranks(num_ranks, [&](RankRig& rig) {
        ProbeModel model(3);
        shard_layers(model, rig.device_mesh(), {});
        if (rig.rank() == 1) model.passes_gradient[missing] = false;
        train_pass(model, rig.context());
      });
      for (const std::string& text : texts) {
        const std::string name = layer_name(static_cast<int>(missing));
        EXPECT_THAT(text, HasSubstr(fmt::format("rank 0 is about to run the backward of unit {0} (parameters {0}.weight), rank 1 ", name)));
      }
    }
  }
}

// D13: at the end of backward everything is resharded, also units that had no gradient.
TEST(D13Reshard, UnitsWithoutGradientAreResharded) {
  run_local_ranks(2, [](auto world) {
    RankRig rig(std::move(world));
    ProbeModel model(3);
    shard_layers(model, rig.device_mesh(), {.strategy = Strategy::shard_grad_op});
    model.passes_gradient[1] = false;
    train_pass(model, rig.context());
    for (const Unit* unit : root_of(model).units()) EXPECT_EQ(unit->storage()->state(), ShardState::sharded) << unit->name();
    EXPECT_FALSE(unit_of(*model.layers[1]).storage()->sharded_grad());
    EXPECT_TRUE(unit_of(*model.layers[0]).storage()->sharded_grad());
    EXPECT_EQ(rig.pool().stats().current_of(MemoryRole::unsharded_param), 0);
  });
}

// --- abandoned steps ------------------------------------------------------------------------------------------------

struct GivenUp : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// What happens in the step after two on rank 0 of 2, as in events_of(). The first try of step 1 ends at `given_up_at`,
/// with its Record still there when the others run.
std::vector<std::string> events_after_giving_up(const std::string& given_up_at, const Options& options) {
  FakeRecorder log;
  RankRig rig(make_fake_group(0, 2, &log));
  std::string throws_at = given_up_at;
  ProbeModel model(3, [&](const std::string& what) {
    if (what == throws_at) throw GivenUp(what);
    log_note(log, what);
  });
  shard_layers(model, rig.device_mesh(), options);
  Root& root = root_of(model);
  nn::Record left_over;
  if (!given_up_at.empty()) {
    try {
      nn::Tensors ys = model.forward(rig.context(), {input_of(rig.context())}, &left_over);
      model.backward(rig.context(), std::move(left_over), std::move(ys));
    } catch (const GivenUp&) {
      root.abandon_step();
    }
    throws_at.clear();
  }
  for (int step = 1; step <= 2; ++step) {
    log.calls.clear();
    train_pass(model, rig.context());
    root.zero_grad();
  }
  return events_of(log);
}

// What the given up step had recorded of the order, and the Records that are left of it, change nothing later.
TEST(AbandonedStep, ChangesNoLaterOrder) {
  for (const bool forward_prefetch : {false, true}) {
    for (const BackwardPrefetch backward_prefetch : {BackwardPrefetch::pre, BackwardPrefetch::post}) {
      const Options options{.backward_prefetch = backward_prefetch, .forward_prefetch = forward_prefetch};
      const std::vector<std::string> undisturbed = events_after_giving_up("", options);
      for (const char* at : {"forward a", "forward b", "forward c", "backward root", "backward c", "backward a"}) {
        EXPECT_EQ(events_after_giving_up(at, options), undisturbed) << "given up at " << at;
      }
    }
  }
}

// The records of the first step's order are those of the first step that was not given up, however far it had come.
TEST(AbandonedStep, TheFirstStepIsCheckedAgain) {
  for (const bool with_backward : {false, true}) {
    run_local_ranks(2, [&](auto world) {
      RankRig rig(std::move(world));
      ProbeModel model(3);
      shard_layers(model, rig.device_mesh(), {});
      Root& root = root_of(model);
      const auto agreements = [&] { return rig.device_mesh().agreement_group().counts().of(Collective::all_gather); };
      if (with_backward) {
        train_pass(model, rig.context());
      } else {
        nn::Record record;
        static_cast<void>(model.forward(rig.context(), {input_of(rig.context())}, &record));
      }
      root.abandon_step();
      const std::int64_t before = agreements();
      train_pass(model, rig.context());
      EXPECT_EQ(agreements() - before, 13);  // as in TheCheckCommunicatesInTheFirstStepOnly
      root.zero_grad();
      train_pass(model, rig.context());
      root.abandon_step();
      train_pass(model, rig.context());
      EXPECT_EQ(agreements() - before, 13) << "of the steps after the first one nothing is checked again";
    });
  }
}

// The host has ended the step, but its work did not run.
TEST(AbandonedStep, AFirstStepThatEndedOnTheHostAloneIsCheckedAgain) {
  run_local_ranks(2, [](auto world) {
    RankRig rig(std::move(world));
    ProbeModel model(3);
    shard_layers(model, rig.device_mesh(), {});
    Root& root = root_of(model);
    train_pass(model, rig.context());
    rig.compute().submit("fail", {}, [] { throw Error("the step's work does not run"); });
    root.zero_grad();
    root.abandon_step();
    const ProcessGroup& group = rig.device_mesh().agreement_group();
    const std::int64_t before = group.counts().of(Collective::all_gather);
    train_pass(model, rig.context());
    EXPECT_EQ(group.counts().of(Collective::all_gather) - before, 13);  // as in TheCheckCommunicatesInTheFirstStepOnly
  });
}

// A parameter that had a gradient in a step that was given up has none after it.
TEST(AbandonedStep, LeavesNoGradients) {
  run_local_ranks(2, [](auto world) {
    RankRig rig(std::move(world));
    ProbeModel model(3);
    nn::Parameter& ignored = model.layers[2]->weight();
    std::vector<float> data(5, 1), grad(5, 7);
    ignored.data = {data.data(), ignored.shape, DType::f32};
    ignored.grad = {grad.data(), ignored.shape, DType::f32};
    fully_shard(model, rig.device_mesh(), {.ignored_parameters = {&ignored}, .root = RootOptions{.use_orig_params = true}});
    Root& root = root_of(model);
    root.initialize(1);
    train_pass(model, rig.context());
    root.abandon_step();
    EXPECT_FALSE(ignored.grad_written);
    model.passes_gradient[1] = false;
    train_pass(model, rig.context());
    rig.compute().synchronize();
    const UnitStorage& storage = *root.units()[0]->storage();
    ASSERT_EQ(storage.parameters().size(), 3U);  // the model's, a's, b's
    EXPECT_TRUE(storage.has_grad(1));
    EXPECT_FALSE(storage.has_grad(2));
    EXPECT_EQ(grad, std::vector<float>(5, 1)) << "not added to what the given up step has left";
  });
}

}  // namespace
}  // namespace mica::fsdp::testing
