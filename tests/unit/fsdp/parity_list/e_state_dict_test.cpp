// SPDX-License-Identifier: Apache-2.0
// docs/parity.md E2: what state dicts of models in memory hold, and that they come back.
#include "mica/fsdp/wrap_policy.hpp"
#include "mica/nn/models/gpt2.hpp"

#include "state_dict_toy.hpp"
#include "support/temporary_folder.hpp"

namespace mica::fsdp::testing {
namespace {

using mica::test::error_of;

// Names in module order with numels: what number_masters() numbers.
const std::vector<std::pair<std::string, Shape>> kParameters{
    {"0.weight", {5, 3}}, {"0.bias", {5}}, {"1.out.weight", {2, 5}}, {"1.out.bias", {2}}, {"1.norm.weight", {2}}};

std::vector<std::string> keys_of(const StateDict& dict) {
  std::vector<std::string> keys;
  for (const auto& [key, tensor] : dict) keys.push_back(key);
  return keys;
}

/// The keys of the unwrapped model, in the order of names.
std::vector<std::string> model_keys(nn::Module& model) {
  std::vector<std::string> keys;
  model.for_each_parameter([&](const std::string& name, nn::Parameter&) { keys.push_back(name); });
  model.for_each_buffer([&](const std::string& name, nn::ModuleBuffer&) { keys.push_back(name); });
  std::ranges::sort(keys);
  return keys;
}

// E2: FULL: the unwrapped model's keys, whole tensors, buffers in their original dtype; copies.
TEST(E2StateDict, FullHasTheUnwrappedModelsKeys) {
  for (const int ranks : {1, 2, 3, 4}) {
    run_local_ranks(ranks, [](auto world) {
      RankRig rig(std::move(world));
      Toy toy(rig);
      const StateDict dict = state_dict(toy.model);
      EXPECT_EQ(keys_of(dict), model_keys(toy.model));
      EXPECT_EQ(dict.size(), 7U);
      for (std::size_t n = 0; n < kParameters.size(); ++n) {
        const StateTensor& tensor = dict.at(kParameters[n].first);
        EXPECT_EQ(tensor.shape(), kParameters[n].second);
        EXPECT_TRUE(tensor.is_whole());
        EXPECT_EQ(rig.values(tensor.view()), numbered(static_cast<int>(n), tensor.numel()));
      }
      EXPECT_EQ(dict.at("1.norm.num_batches").dtype(), DType::i64);
      EXPECT_EQ(rig.values(dict.at("1.norm.running_mean").view()), rig.values(toy.norm->mean().data));
      // Copies: the model may change.
      toy.clear();
      EXPECT_EQ(rig.values(dict.at("0.bias").view()), numbered(1, 5));
      EXPECT_NE(rig.values(dict.at("1.norm.running_mean").view()), rig.values(toy.norm->mean().data));
    });
  }
}

// E2: below an inner unit; names relative to it. Below a plain module that holds roots.
TEST(E2StateDict, OfAnInnerUnitAndOfAPlainModule) {
  run_local_ranks(2, [](auto world) {
    RankRig rig(std::move(world));
    Toy toy(rig);
    EXPECT_EQ(keys_of(state_dict(*toy.unit)),
              (std::vector<std::string>{"norm.num_batches", "norm.running_mean", "norm.weight", "out.bias", "out.weight"}));
    // Linear 0 belongs to the root unit, which is above.
    const std::string text = error_of<ConfigError>([&] { static_cast<void>(state_dict(*toy.model.children()[0].module)); });
    EXPECT_NE(text.find("no unit"), std::string::npos) << text;
    auto plain = make_chain({3, 5, 2});
    for (const auto& child : plain->children()) {
      fully_shard(*child.module, rig.device_mesh(), {});
      root_of(*child.module).initialize(1);
    }
    EXPECT_EQ(keys_of(state_dict(*plain)), model_keys(*plain));
  });
}

// E2: rank-0-only: empty off rank 0. Offload: host memory; the device never holds the whole model.
TEST(E2StateDict, FullOnRank0AndOffloaded) {
  run_local_ranks(3, [](auto world) {
    RankRig rig(std::move(world));
    nn::Sequential model;
    for (int i = 0; i < 6; ++i) {
      fully_shard(model.add<nn::Linear>(std::to_string(i), 100, 6, nn::LinearOptions{.bias = false}), rig.device_mesh(), {});
    }
    fully_shard(model, rig.device_mesh(), {});
    root_of(model).initialize(1);
    rig.number_masters(model);
    const std::int64_t before = rig.pool().stats().current;
    {
      const StateDict dict = state_dict(model);
      EXPECT_EQ(rig.pool().stats().current - before, 6 * 600 * 4);
    }
    set_state_dict_settings(model, {.model = FullStateDictConfig{.offload_to_cpu = true, .rank0_only = true}});
    rig.pool().reset_peak();
    const StateDict dict = state_dict(model);
    EXPECT_EQ(rig.pool().stats().peak - before, 600 * 4);  // one gathered unit
    EXPECT_EQ(rig.pool().stats().current, before);
    EXPECT_EQ(dict.size(), rig.rank() == 0 ? 6U : 0U);
    if (rig.rank() == 0) {
      EXPECT_TRUE(dict.at("5.weight").is_on_host());
      EXPECT_EQ(rig.values(dict.at("5.weight").view()), numbered(5, 600));
    }
  });
}

// E2: SHARDED cuts dim 0 at rank x ceil(d0 / S), empty past the end: 5 rows over 4 ranks: 2, 2, 1, 0.
TEST(E2StateDict, ShardedCutsDim0) {
  for (const bool offload : {false, true}) {
    run_local_ranks(4, [&](auto world) {
      RankRig rig(std::move(world));
      Toy toy(rig);
      StateDictSettings settings = StateDictSettings::of(StateDictKind::sharded);
      settings.model = ShardedStateDictConfig{.offload_to_cpu = offload};
      toy.set(settings);
      const StateDict dict = state_dict(toy.model);
      EXPECT_EQ(keys_of(dict), model_keys(toy.model));
      const StateTensor& weight = dict.at("0.weight");
      const std::int64_t begins[] = {0, 2, 4, 5}, rows[] = {2, 2, 1, 0};
      EXPECT_EQ(weight.row_begin(), begins[rig.rank()]);
      EXPECT_EQ(weight.shape(), (Shape{rows[rig.rank()], 3}));
      EXPECT_EQ(weight.global_shape(), (Shape{5, 3}));
      EXPECT_EQ(weight.is_on_host(), offload);
      std::vector<float> expected = numbered(0, 15);
      expected = {expected.begin() + 3 * begins[rig.rank()], expected.begin() + 3 * (begins[rig.rank()] + rows[rig.rank()])};
      EXPECT_EQ(rig.values(weight.view()), expected);
      // [2]: one row each on ranks 0 and 1. Buffers are whole.
      EXPECT_EQ(dict.at("1.out.bias").numel(), rig.rank() < 2 ? 1 : 0);
      EXPECT_EQ(dict.at("1.norm.running_mean").shape(), Shape{2});
    });
  }
}

// The same where the rows divide evenly: 2 rows over 2 ranks, one each.
TEST(E2StateDict, ShardedCutsDim0Evenly) {
  run_local_ranks(2, [](auto world) {
    RankRig rig(std::move(world));
    Toy toy(rig);
    toy.set(StateDictKind::sharded);
    const StateDict dict = state_dict(toy.model);
    EXPECT_EQ(dict.at("1.out.weight").shape(), (Shape{1, 5}));
    EXPECT_EQ(dict.at("1.out.weight").row_begin(), rig.rank());
  });
}

// E2: LOCAL: one key a unit, without copy and without padding.
TEST(E2StateDict, LocalHasOneKeyAUnit) {
  run_local_ranks(3, [](auto world) {
    RankRig rig(std::move(world));
    Toy toy(rig);
    toy.set(StateDictKind::local);
    StateDict dict = state_dict(toy.model);
    EXPECT_EQ(keys_of(dict), (std::vector<std::string>{"1.flat_param", "1.norm.num_batches", "1.norm.running_mean", "flat_param"}));
    // The root unit: weight 15, aligned to 64, bias 5: 69 in all, 23 a rank; rank 1 has nothing, rank 2 ends full.
    // The unit: weight 10 | 64: bias 2 | 128: norm 2: 130 in all, 44 a rank (132 with padding); the last has 42.
    const std::int64_t root_numels[] = {15, 0, 23}, unit_numels[] = {10, 22, 42};
    EXPECT_EQ(dict.at("flat_param").numel(), root_numels[rig.rank()]);
    EXPECT_EQ(dict.at("1.flat_param").numel(), unit_numels[rig.rank()]);
    EXPECT_EQ(dict.at("1.flat_param").view().data, toy.root().units()[1]->storage()->master().data);  // no copy
    EXPECT_EQ(dict.at("1.flat_param").global_shape(), Shape{132});
    EXPECT_EQ(dict.at("1.flat_param").row_begin(), 44 * rig.rank());
  });
}

// E2: LOCAL between passes that leave units unsharded; the next forward sees what is written into the dict.
TEST(E2StateDict, LocalReshardsWhatIsUnsharded) {
  for (const Strategy strategy : {Strategy::shard_optim, Strategy::shard_grad_op}) {
    run_local_ranks(2, [&](auto world) {
      RankRig rig(std::move(world));
      Toy toy(rig, {.strategy = strategy});
      toy.set(StateDictKind::local);
      const Tensor x = rig.context().make({1, 3}, DType::f32);
      rig.kernels().fill(rig.compute(), x, 1.0);
      nn::Record record;  // of a backward that is still to come; the other strategy keeps parameters without one, too
      static_cast<void>(toy.model.forward(rig.context(), {x}, strategy == Strategy::shard_optim ? nullptr : &record));
      for (const Unit* unit : toy.root().units()) {
        EXPECT_TRUE(unit->storage()->is_unsharded()) << unit->name() << " " << strategy_name(strategy);
      }
      for (auto& [key, tensor] : state_dict(toy.model)) {
        if (key.ends_with("flat_param")) rig.kernels().fill(rig.compute(), tensor.view(), 0.0);
      }
      EXPECT_EQ(rig.values(toy.model.forward(rig.context(), {x}, nullptr)[0]), (std::vector<float>{0, 0}));
    });
  }
}

// E2: load, every kind; LOCAL pads on load. Offloaded and not.
void expect_round_trips(const Options& options) {
  for (const int ranks : {1, 2, 3, 4}) {
    for (const StateDictKind kind : {StateDictKind::full, StateDictKind::sharded, StateDictKind::local}) {
      if (ranks == 1 && kind != StateDictKind::full) continue;
      run_local_ranks(ranks, [&](auto world) {
        RankRig rig(std::move(world));
        Toy toy(rig, options);
        StateDictSettings settings = StateDictSettings::of(kind);
        std::visit([](auto& config) { config.offload_to_cpu = true; }, settings.model);
        toy.set(settings);
        const StateDict dict = state_dict(toy.model);
        const std::vector<float> mean = rig.values(toy.norm->mean().data);
        if (kind == StateDictKind::local) {  // what somebody wrote into a gap does not persist
          for (const auto& [key, tensor] : dict) {
            if (!key.ends_with("flat_param")) continue;
            const bool is_root = key == "flat_param";
            for (const Piece& p : toy.root().pieces()) {
              if ((&toy.root().storage(p) == toy.root().units()[0]->storage()) != is_root) continue;
              const std::int64_t behind = p.offset + p.numel();
              const bool is_weight = toy.root().parameter(p).full_name == "0.weight";
              if (is_weight && behind < tensor.numel() && options.sharding == Sharding::flat) {
                tensor.view().template as<float>()[behind] = 7;
              }
            }
          }
        }
        toy.clear();
        const LoadStateDictReport report = load_state_dict(toy.model, dict);
        EXPECT_TRUE(report.missing.empty());
        EXPECT_TRUE(report.unexpected.empty());
        const std::string what = fmt::format("{} on {} ranks", state_dict_kind_name(kind), ranks);
        expect_numbered(rig, toy, what);
        EXPECT_EQ(rig.values(toy.norm->mean().data), mean);
        if (kind != StateDictKind::local) return;
        for (const Unit* unit : toy.root().units()) {  // padding, which clear() had overwritten, is zero again
          const UnitStorage& storage = *unit->storage();
          std::vector<float> rest(storage.master().as<float>(), storage.master().as<float>() + storage.master().numel());
          for (const Piece& piece : storage.layout().pieces(storage.shard_rank())) {
            std::fill_n(rest.begin() + piece.offset, piece.numel(), 0.0F);
          }
          EXPECT_EQ(rest, std::vector<float>(rest.size())) << what;
        }
      });
    }
  }
}

TEST(E2StateDict, RoundTrips) {
  expect_round_trips({});
  expect_round_trips({.sharding = Sharding::per_parameter});
  expect_round_trips({.cpu_offload = CpuOffload::parameters});
}

// E2: buffers in their original dtype in all kinds, although forwards have cast them.
TEST(E2StateDict, BuffersAreInTheirOriginalDtype) {
  for (const StateDictKind kind : {StateDictKind::full, StateDictKind::sharded, StateDictKind::local}) {
    run_local_ranks(2, [&](auto world) {
      RankRig rig(std::move(world));
      Options options;
      options.mixed_precision = {.param_dtype = DType::bf16, .buffer_dtype = DType::bf16};
      Toy toy(rig, options);
      Tensor x = rig.context().make({1, 3}, DType::f32);
      rig.kernels().fill(rig.compute(), x, 1.0);
      static_cast<void>(toy.model.forward(rig.context(), nn::list_of(std::move(x)), nullptr));
      ASSERT_EQ(toy.norm->mean().data.dtype, DType::bf16);
      toy.set(kind);
      const StateDict dict = state_dict(toy.model);
      EXPECT_EQ(dict.at("1.norm.running_mean").dtype(), DType::f32);
      EXPECT_EQ(rig.values(dict.at("1.norm.running_mean").view()), rig.values(toy.norm->mean().data));
      if (kind == StateDictKind::full) {
        EXPECT_EQ(dict.at("0.weight").dtype(), DType::f32);
      }
      load_state_dict(toy.model, dict);
      EXPECT_EQ(toy.norm->mean().data.dtype, DType::bf16);  // stays cast
    });
  }
}

// E2: shared parameters are kept, once, under the first name.
TEST(E2StateDict, KeepsSharedParameters) {
  run_local_ranks(2, [](auto world) {
    RankRig rig(std::move(world));
    nn::Gpt2 model({.layers = 1, .heads = 1, .width = 4, .context = 4, .vocab_size = 7, .tie_embeddings = true});
    Root& root = auto_wrap(model, rig.device_mesh(), {}, wrap_types({"embedding", "gpt2_block"}));
    root.initialize(1);
    rig.number_masters(model);
    const StateDict dict = state_dict(model);
    EXPECT_EQ(keys_of(dict), model_keys(model));
    EXPECT_EQ(rig.values(dict.at("transformer.wte.weight").view()), numbered(0, 28));
  });
}

// E2: LOCAL save and SHARDED load are refused on unsharded units.
TEST(E2StateDict, LocalSaveAndShardedLoadAreRefusedOnUnshardedUnits) {
  run_local_ranks(2, [](auto world) {
    RankRig rig(std::move(world), 1);
    Toy toy(rig, {.strategy = Strategy::no_shard});
    toy.set(StateDictKind::local);
    EXPECT_NE(error_of<Error>([&] { static_cast<void>(state_dict(toy.model)); }).find("unit root is not sharded"), std::string::npos);
    toy.set(StateDictKind::sharded);
    const StateDict dict = state_dict(toy.model);
    EXPECT_TRUE(dict.at("0.weight").is_whole());
    EXPECT_NE(error_of<Error>([&] { load_state_dict(toy.model, dict); }).find("unit root is not sharded"), std::string::npos);
  });
}

// Per-rank sizes at 128 ranks: units smaller than the world, parameters with fewer rows than ranks.
TEST(E2StateDict, On128Ranks) {
  run_local_ranks(128, [](auto world) {
    RankRig rig(std::move(world));
    Toy toy(rig);
    const auto settings_of = [](StateDictKind kind) {
      StateDictSettings settings = StateDictSettings::of(kind);
      std::visit([](auto& config) { config.offload_to_cpu = true; }, settings.model);
      return settings;
    };
    for (const StateDictKind kind : {StateDictKind::full, StateDictKind::sharded, StateDictKind::local}) {
      toy.set(settings_of(kind));
      const StateDict dict = state_dict(toy.model);
      if (kind == StateDictKind::sharded) {
        EXPECT_EQ(dict.at("0.weight").shape(), (Shape{rig.rank() < 5 ? 1 : 0, 3}));
      }
      toy.clear();
      load_state_dict(toy.model, dict);
      for (const Piece& p : toy.root().pieces()) {
        const std::string& name = toy.root().parameter(p).full_name;
        const auto n = std::ranges::find(kParameters, name, &std::pair<std::string, Shape>::first) - kParameters.begin();
        for (std::int64_t i = 0; i < p.numel(); ++i) {
          EXPECT_EQ(toy.root().master(p).as<float>()[i], static_cast<float>(n * 1000 + p.begin + i)) << name;
        }
      }
    }
  });
}

}  // namespace
}  // namespace mica::fsdp::testing
