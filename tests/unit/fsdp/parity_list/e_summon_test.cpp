// SPDX-License-Identifier: Apache-2.0
// docs/parity.md E1: full parameters for a while.
#include "mica/fsdp/summon.hpp"

#include "rank_rig.hpp"
#include "support/temporary_folder.hpp"
#include "unit/optim/sharded_weights.hpp"

namespace mica::fsdp::testing {
namespace {

using mica::test::error_of;

/// Linear(3 -> 5) in a unit of its own, Linear(5 -> 2) in the root unit. Weights numbered.
struct TwoUnits {
  explicit TwoUnits(RankRig& rig, const Options& options = {}) : model(make_chain({3, 5, 2})) {
    fully_shard(*model->children()[0].module, rig.device_mesh(), options);
    fully_shard(*model, rig.device_mesh(), options);
    root().initialize(1);
    rig.number_masters(*model);
  }
  Root& root() { return root_of(*model); }
  nn::Module& inner() { return *model->children()[0].module; }
  nn::Parameter& parameter(std::size_t n) {
    std::vector<nn::Parameter*> all;
    model->for_each_parameter([&](const std::string&, nn::Parameter& p) { all.push_back(&p); });
    return *all.at(n);
  }
  nn::Tensors forward(RankRig& rig, nn::Record* record) {
    Tensor x = rig.context().make({1, 3}, DType::f32);
    rig.kernels().fill(rig.compute(), x, 1.0);
    return model->forward(rig.context(), nn::list_of(std::move(x)), record);
  }
  std::unique_ptr<nn::Sequential> model;
};

constexpr std::int64_t kNumels[] = {15, 5, 10, 2};

void expect_numbered(RankRig& rig, TwoUnits& two) {
  SummonFullParams full(*two.model, {.write_back = false});
  for (int n = 0; n < 4; ++n) {
    EXPECT_EQ(rig.values(two.parameter(static_cast<std::size_t>(n)).data), numbered(n, kNumels[n])) << "parameter " << n;
  }
}

// E1: every rank sees all elements, under the parameter's shape; afterwards nothing is left.
TEST(E1Summon, GivesWholeParameters) {
  for (const int ranks : {1, 2, 3, 4}) {
    run_local_ranks(ranks, [&](auto world) {
      RankRig rig(std::move(world));
      TwoUnits two(rig);
      expect_numbered(rig, two);
      {
        SummonFullParams full(*two.model);
        EXPECT_EQ(two.parameter(0).data.shape, (Shape{5, 3}));
        EXPECT_EQ(two.root().state(), TrainingState::summon);
      }
      EXPECT_EQ(two.root().state(), TrainingState::idle);
      for (std::size_t n = 0; n < 4; ++n) EXPECT_FALSE(two.parameter(n).data);
    });
  }
}

// E1, C4: the same where every parameter is cut by itself, along dim 1 of the first weight too.
TEST(E1Summon, OfParametersThatAreCutOneByOne) {
  for (const int ranks : {1, 2, 3, 4}) {
    run_local_ranks(ranks, [&](auto world) {
      RankRig rig(std::move(world));
      Options options{.sharding = Sharding::per_parameter};
      if (ranks == 3) options.shard_dims = {{"0.weight", 1}};
      TwoUnits two(rig, options);
      expect_numbered(rig, two);
      {
        SummonFullParams full(*two.model);
        two.parameter(0).data.as<float>()[14] = -3;
      }
      SummonFullParams full(*two.model, {.write_back = false});
      std::vector<float> expected = numbered(0, 15);
      expected[14] = -3;
      EXPECT_EQ(rig.values(two.parameter(0).data), expected);
    });
  }
}

// E1: each rank persists the slice that it owns, and padding stays zero. 15 elements in 3 pieces: rank 1 writes 100s,
// the others 0s and 200s, so the result shows whose slice persisted.
TEST(E1Summon, WritesBackTheSliceThatEachRankOwns) {
  run_local_ranks(3, [](auto world) {
    RankRig rig(std::move(world));
    auto model = make_chain({3, 5});
    fully_shard(*model, rig.device_mesh(), {});
    Root& root = root_of(*model);
    root.initialize(1);
    {
      SummonFullParams full(*model);
      model->for_each_parameter([&](const std::string&, nn::Parameter& p) {
        std::fill_n(p.data.as<float>(), p.data.numel(), 100.0F * static_cast<float>(rig.rank()));
      });
    }
    SummonFullParams full(*model, {.write_back = false});
    // The flat parameter: weight 15, alignment to 64, bias 5, 69 in all, 23 a rank: rank 0 has the weight, 2 the bias.
    model->for_each_parameter([&](const std::string& name, nn::Parameter& p) {
      EXPECT_EQ(rig.values(p.data), std::vector<float>(static_cast<std::size_t>(p.data.numel()), name == "0.weight" ? 0.0F : 200.0F));
    });
    full.close();
    for (const Piece& p : root.pieces()) {
      const float* shard = root.storage(p).master().as<float>();
      for (std::int64_t i = 0; i < root.storage(p).layout().shard_numel(); ++i) {
        const bool is_data = i >= p.offset && i < p.offset + p.numel();
        if (!is_data) {
          EXPECT_EQ(shard[i], 0) << "padding at " << i;
        }
      }
    }
  });
}

// E1: without write-back edits are gone, except where nothing is sharded.
TEST(E1Summon, WithoutWriteBackEditsPersistOnlyWhereNothingIsSharded) {
  for (const int shard_size : {1, 2}) {
    run_local_ranks(2, [&](auto world) {
      RankRig rig(std::move(world), shard_size);
      const Options options{.strategy = shard_size == 1 ? Strategy::no_shard : Strategy::full_shard};
      TwoUnits two(rig, options);
      {
        SummonFullParams full(*two.model, {.write_back = false});
        two.parameter(2).data.as<float>()[3] = -7;
      }
      SummonFullParams full(*two.model, {.write_back = false});
      EXPECT_EQ(two.parameter(2).data.as<float>()[3], shard_size == 1 ? -7 : 2003);
    });
  }
}

// E1: recurse off takes the module's own unit alone.
TEST(E1Summon, WithoutRecursionOnlyTheModulesOwnUnit) {
  run_local_ranks(2, [](auto world) {
    RankRig rig(std::move(world));
    TwoUnits two(rig);
    SummonFullParams full(*two.model, {.recurse = false});
    EXPECT_FALSE(two.parameter(0).data);
    EXPECT_TRUE(two.parameter(2).data);
  });
}

// E1: it may start at an inner unit.
TEST(E1Summon, MayStartAtAnInnerUnit) {
  run_local_ranks(2, [](auto world) {
    RankRig rig(std::move(world));
    TwoUnits two(rig);
    SummonFullParams full(two.inner());
    EXPECT_EQ(rig.values(two.parameter(0).data), numbered(0, 15));
    EXPECT_FALSE(two.parameter(2).data);
    EXPECT_EQ(two.root().state(), TrainingState::summon);
  });
}

// E1, B9: a plain module may hold several roots.
TEST(E1Summon, MayStartAtAPlainModuleHoldingSeveralRoots) {
  run_local_ranks(2, [](auto world) {
    RankRig rig(std::move(world));
    auto model = make_chain({3, 5, 2});
    for (const auto& child : model->children()) {
      fully_shard(*child.module, rig.device_mesh(), {});
      root_of(*child.module).initialize(1);
      rig.number_masters(*child.module);
    }
    {
      SummonFullParams full(*model);
      int n = 0;
      model->for_each_parameter([&](const std::string&, nn::Parameter& p) {
        EXPECT_EQ(rig.values(p.data), numbered(n % 2, p.shape.numel()));
        ++n;
      });
      EXPECT_EQ(n, 4);
      for (const auto& child : model->children()) EXPECT_EQ(root_of(*child.module).state(), TrainingState::summon);
    }
    for (const auto& child : model->children()) EXPECT_EQ(root_of(*child.module).state(), TrainingState::idle);
  });
}

// E1: rank 0 only still gathers on all ranks (two units: two all-gathers each); write-back is refused with it.
TEST(E1Summon, OnRank0OnlyStillGathersEverywhere) {
  run_local_ranks(3, [](auto world) {
    RankRig rig(std::move(world));
    TwoUnits two(rig);
    rig.mesh().shard().reset_counts();
    {
      SummonFullParams full(*two.model, {.write_back = false, .rank0_only = true});
      EXPECT_EQ(rig.mesh().shard().counts().of(Collective::all_gather), 2);
      for (std::size_t n = 0; n < 4; ++n) EXPECT_EQ(static_cast<bool>(two.parameter(n).data), rig.rank() == 0);
    }
    const std::string text = error_of<ConfigError>([&] { SummonFullParams full(*two.model, {.rank0_only = true}); });
    EXPECT_NE(text.find("write_back = false"), std::string::npos) << text;
    EXPECT_EQ(two.root().state(), TrainingState::idle);
  });
}

// E1: offloaded parameters are no device memory; write-back works from there. Warned without rank 0 only.
TEST(E1Summon, OffloadedToTheHost) {
  const std::string log = stderr_of([] {
    run_local_ranks(2, [](auto world) {
      RankRig rig(std::move(world), 0, Logger::to_stderr(LogLevel::warn, ""));
      TwoUnits two(rig);
      const std::int64_t before = rig.pool().stats().current;
      {
        SummonFullParams full(*two.model, {.offload_to_cpu = true});
        EXPECT_EQ(rig.pool().stats().current, before);
        EXPECT_EQ(rig.values(two.parameter(1).data), numbered(1, 5));
        two.parameter(1).data.as<float>()[4] = 42;
      }
      SummonFullParams full(*two.model, {.write_back = false, .rank0_only = true, .offload_to_cpu = true});
      if (rig.rank() == 0) {
        EXPECT_EQ(two.parameter(1).data.as<float>()[4], 42);
      }
    });
  });
  const std::string warning = "summoned to host memory on every rank";
  const auto first = log.find(warning);
  ASSERT_NE(first, std::string::npos) << log;
  // Once on each of two ranks, by the first of the two summons.
  EXPECT_NE(log.find(warning, first + 1), std::string::npos);
  EXPECT_EQ(log.find(warning, log.find(warning, first + 1) + 1), std::string::npos);
}

// E1: with gradients: the averaged ones, absent where there are none; written back too.
TEST(E1Summon, WithGradients) {
  run_local_ranks(3, [](auto world) {
    RankRig rig(std::move(world));
    TwoUnits two(rig, {.root = RootOptions{.use_orig_params = true}});
    {
      SummonFullParams full(*two.model, {.with_grads = true});
      EXPECT_FALSE(two.parameter(3).grad);
    }
    nn::Record record;
    const nn::Tensors ys = two.forward(rig, &record);
    Tensor dy = rig.context().make({1, 2}, DType::f32);
    rig.kernels().fill(rig.compute(), dy, 1.0 + rig.rank());
    two.model->backward(rig.context(), std::move(record), nn::list_of(std::move(dy)));
    {
      SummonFullParams full(*two.model, {.with_grads = true});
      // The last bias: the mean of 1, 2 and 3.
      EXPECT_EQ(rig.values(two.parameter(3).grad), (std::vector<float>{2, 2}));
      two.parameter(3).grad.as<float>()[1] = 8;
    }
    EXPECT_FALSE(two.parameter(3).grad);
    SummonFullParams full(*two.model, {.write_back = false, .with_grads = true});
    EXPECT_EQ(rig.values(two.parameter(3).grad), (std::vector<float>{2, 8}));
    full.close();
    EXPECT_THROW(SummonFullParams(*two.model, {.offload_to_cpu = true, .with_grads = true}), ConfigError);
    TwoUnits flat(rig);
    EXPECT_NE(error_of<ConfigError>([&] { SummonFullParams refused(*flat.model, {.with_grads = true}); }).find("use_orig_params=true"),
              std::string::npos);
  });
}

// E1: gradients that no_sync has left stay where they are, also those that are still to become zero: "b" has none, and nothing
// makes its gradient anew, since the unit has no part in the backward that reduces it.
TEST(E1Summon, LeavesAccumulatedGradientsAlone) {
  for (const int ranks : {1, 2}) {
    run_local_ranks(ranks, [](auto world) {
      using mica::test::Values;
      mica::test::ShardedWeights model(std::move(world), {{{"a", Shape{3}}, {"b", Shape{2}}}, {{"c", Shape{1}}}},
                                       {.fsdp = {.root = RootOptions{.use_orig_params = true}}});
      model.weight(0, 0).grad = {1, 2, 3};
      model.weight(0, 1).has_grad = false;
      model.weight(1, 0).grad = {4};
      {
        const NoSync no_sync(model.root());
        model.pass();
      }
      SummonFullParams(model.model()).close();
      EXPECT_EQ(model.weight(0, 0).parameter->grad.shape, (Shape{3}));
      model.pass({false, true});
      EXPECT_EQ(model.gather_grad("u0.a"), (Values{1, 2, 3}));
      EXPECT_EQ(model.gather_grad("u1.c"), Values{8});
      for (const Piece& p : model.root().pieces()) {
        if (model.root().parameter(p).full_name != "u0.b") continue;
        const TensorView grad = model.root().storage(p).sharded_grad().slice(p.offset, p.numel());
        EXPECT_EQ(Values(grad.as<float>(), grad.as<float>() + grad.numel()), Values(2, 0.0F));
      }
    });
  }
}

// E1, D15: it starts in IDLE, does not nest, and a forward or backward inside is an error that names the state.
TEST(E1Summon, DoesNotNestAndRefusesPasses) {
  run_local_ranks(2, [](auto world) {
    RankRig rig(std::move(world));
    TwoUnits two(rig);
    nn::Record record;
    const nn::Tensors ys = two.forward(rig, &record);
    {
      BackwardPass pass(two.root());
      EXPECT_NE(error_of<Error>([&] { SummonFullParams full(*two.model); }).find("in backward"), std::string::npos);
      pass.finish();
    }
    SummonFullParams full(*two.model);
    const std::string state = "summoning full parameters";
    EXPECT_NE(error_of<Error>([&] { SummonFullParams again(two.inner()); }).find(state), std::string::npos);
    EXPECT_NE(error_of<Error>([&] { static_cast<void>(two.forward(rig, nullptr)); }).find(state), std::string::npos);
    EXPECT_NE(error_of<Error>([&] { two.model->backward(rig.context(), std::move(record), ys); }).find(state), std::string::npos);
    EXPECT_NE(error_of<Error>([&] { two.root().zero_grad(); }).find(state), std::string::npos);
    EXPECT_EQ(rig.values(two.parameter(0).data), numbered(0, 15));  // still there
  });
}

// E1: full precision under mixed precision, through a buffer of its own: what a bf16 copy would have lost is there.
TEST(E1Summon, GivesFullPrecisionUnderMixedPrecision) {
  run_local_ranks(2, [](auto world) {
    RankRig rig(std::move(world));
    TwoUnits two(rig, {.mixed_precision = {.param_dtype = DType::bf16}});
    expect_numbered(rig, two);  // 2009 has more bits than bf16
    SummonFullParams full(*two.model, {.write_back = false});
    EXPECT_EQ(two.parameter(2).data.dtype, DType::f32);
    EXPECT_EQ(two.parameter(2).data.as<float>()[9], 2009);
  });
}

// A forward before and after: nothing stale is used, neither by the summon nor by the pass after it.
TEST(E1Summon, BetweenPasses) {
  for (const Strategy strategy : {Strategy::full_shard, Strategy::shard_grad_op}) {
    run_local_ranks(2, [&](auto world) {
      RankRig rig(std::move(world));
      TwoUnits two(rig, {.strategy = strategy});
      nn::Record record;
      static_cast<void>(two.forward(rig, &record));  // keeps parameters unsharded
      {
        SummonFullParams full(*two.model);
        for (std::size_t n = 0; n < 4; ++n) std::fill_n(two.parameter(n).data.as<float>(), kNumels[n], 1.0F);
      }
      EXPECT_EQ(rig.values(two.forward(rig, nullptr)[0]), (std::vector<float>{21, 21}));  // 5 * (3 + 1) + 1
    });
  }
}

// Parameters without values cannot be summoned.
TEST(E1Summon, IsRefusedBeforeInitialisation) {
  run_local_ranks(1, [](auto world) {
    RankRig rig(std::move(world));
    auto model = make_chain({3, 5});
    fully_shard(*model, rig.device_mesh(), {});
    EXPECT_NE(error_of<Error>([&] { SummonFullParams full(*model); }).find("root"), std::string::npos);
    EXPECT_EQ(root_of(*model).state(), TrainingState::idle);
  });
}

}  // namespace
}  // namespace mica::fsdp::testing
