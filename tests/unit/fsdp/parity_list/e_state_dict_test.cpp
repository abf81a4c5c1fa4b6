// FEATURES E2 and E4: state dicts of models in memory.
#include "mica/fsdp/state_dict.hpp"
#include "mica/fsdp/summon.hpp"
#include "mica/fsdp/wrap_policy.hpp"
#include "mica/nn/models/gpt2.hpp"
#include "norm_like.hpp"
#include "rank_rig.hpp"
#include "support/temporary_folder.hpp"

namespace mica::fsdp::testing {
namespace {

using mica::test::error_of;

/// Linear(3 -> 5), then a unit of { Linear(5 -> 2), NormLike(2) }: a root unit and a unit "1". Parameters numbered.
struct Toy {
  explicit Toy(RankRig& rig, Options options = {}) {
    if (rig.mesh().replicas() > 1 && options.strategy == Strategy::full_shard) options.strategy = Strategy::hybrid_shard;
    model.add<nn::Linear>("0", 3, 5);
    auto& inner = model.add<nn::Sequential>("1", "inner");
    inner.add<nn::Linear>("out", 5, 2);
    norm = &inner.add<NormLike>("norm", 2);
    unit = &inner;
    fully_shard(inner, rig.device_mesh(), options);
    fully_shard(model, rig.device_mesh(), options);
    root().initialize(1);
    rig.number_masters(model);
  }
  Root& root() { return root_of(model); }
  void set(const StateDictSettings& settings) { set_state_dict_settings(model, settings); }
  void set(StateDictKind kind) { set(StateDictSettings::of(kind)); }
  void clear() {
    for (const Unit* each : root().units()) {
      const TensorView master = each->storage()->master();
      std::fill_n(master.as<float>(), master.numel(), -1.0F);
    }
    std::fill_n(norm->mean().data.as<float>(), 2, -1.0F);
  }
  nn::Sequential model;
  nn::Module* unit = nullptr;
  NormLike* norm = nullptr;
};

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

void expect_numbered(RankRig& rig, Toy& toy, const std::string& what = "") {
  SummonFullParams full(toy.model, {.write_back = false});
  int n = 0;
  toy.model.for_each_parameter([&](const std::string& name, nn::Parameter& p) {
    EXPECT_EQ(rig.values(p.data), numbered(n++, p.shape.numel())) << what << " " << name;
  });
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
    EXPECT_EQ(keys_of(state_dict(*toy.unit)), (std::vector<std::string>{"norm.num_batches", "norm.running_mean",
                                                                       "norm.weight", "out.bias", "out.weight"}));
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
    EXPECT_EQ(keys_of(dict),
              (std::vector<std::string>{"1.flat_param", "1.norm.num_batches", "1.norm.running_mean", "flat_param"}));
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
            for (const ShardedParameter& p : toy.root().parameters()) {
              if ((p.storage == toy.root().units()[0]->storage()) != is_root) continue;
              const std::int64_t behind = p.piece.offset + p.piece.numel();
              if (p.piece.parameter == "0.weight" && behind < tensor.numel() && options.sharding == Sharding::flat) {
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
          std::vector<float> rest(storage.master().as<float>(),
                                  storage.master().as<float>() + storage.master().numel());
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
    EXPECT_NE(error_of<Error>([&] { static_cast<void>(state_dict(toy.model)); }).find("unit root is not sharded"),
              std::string::npos);
    toy.set(StateDictKind::sharded);
    const StateDict dict = state_dict(toy.model);
    EXPECT_TRUE(dict.at("0.weight").is_whole());
    EXPECT_NE(error_of<Error>([&] { load_state_dict(toy.model, dict); }).find("unit root is not sharded"), std::string::npos);
  });
}

// E2: kind and config are set for all units below a module and return the old setting.
TEST(E2Settings, ReturnTheOldOnes) {
  run_local_ranks(1, [](auto world) {
    RankRig rig(std::move(world));
    Toy toy(rig);
    EXPECT_EQ(state_dict_settings(toy.model), StateDictSettings{});  // FULL, offload and rank-0-only off
    EXPECT_EQ(StateDictSettings{}.kind, StateDictKind::full);
    EXPECT_EQ(FullStateDictConfig{}, (FullStateDictConfig{.offload_to_cpu = false, .rank0_only = false}));
    EXPECT_TRUE(FullOptimStateDictConfig{}.rank0_only);
    const StateDictSettings offloaded{.model = FullStateDictConfig{.offload_to_cpu = true}};
    EXPECT_EQ(set_state_dict_settings(toy.model, offloaded), StateDictSettings{});
    EXPECT_EQ(set_state_dict_settings(toy.model, StateDictSettings::of(StateDictKind::local)), offloaded);
    EXPECT_EQ(state_dict_settings(*toy.unit).kind, StateDictKind::local);
  });
}

// E2: matching types.
TEST(E2Settings, ConfigsOfAnotherKindAreRefused) {
  run_local_ranks(1, [](auto world) {
    RankRig rig(std::move(world));
    Toy toy(rig);
    const std::string model = error_of<ConfigError>([&] { toy.set({.kind = StateDictKind::local}); });
    EXPECT_NE(model.find("the model config is one of full state dicts, the kind is local"), std::string::npos) << model;
    const std::string optim = error_of<ConfigError>(
        [&] { toy.set({.kind = StateDictKind::sharded, .model = ShardedStateDictConfig{}}); });
    EXPECT_NE(optim.find("the optimizer config is one of full"), std::string::npos) << optim;
    EXPECT_EQ(state_dict_settings(toy.model), StateDictSettings{});
  });
}

// E2: scoped, and restored after an exception.
TEST(E2Settings, AreRestoredAfterAnException) {
  run_local_ranks(1, [](auto world) {
    RankRig rig(std::move(world));
    Toy toy(rig);
    toy.set(StateDictKind::sharded);
    try {
      const StateDictSettingsScope scope(toy.model, StateDictSettings::of(StateDictKind::local));
      EXPECT_EQ(state_dict_settings(toy.model).kind, StateDictKind::local);
      throw std::runtime_error("disk full");
    } catch (const std::runtime_error&) {
    }
    EXPECT_EQ(state_dict_settings(toy.model).kind, StateDictKind::sharded);
  });
}

// E2: differing settings under one root are an error.
TEST(E2Settings, DifferingOnesUnderOneRootAreAnError) {
  run_local_ranks(1, [](auto world) {
    RankRig rig(std::move(world));
    Toy toy(rig);
    set_state_dict_settings(*toy.unit, StateDictSettings::of(StateDictKind::sharded));
    const std::string text = error_of<ConfigError>([&] { static_cast<void>(state_dict(toy.model)); });
    EXPECT_NE(text.find("units root and 1 have different state dict settings (full and sharded)"), std::string::npos) << text;
    EXPECT_THROW(toy.set(StateDictKind::local), ConfigError);
    EXPECT_EQ(state_dict_settings(*toy.unit).kind, StateDictKind::sharded);  // nothing has changed
  });
}

// E2: missing and unexpected keys are errors by name, the same on all ranks; not strict: reported.
TEST(E2StateDict, MissingAndUnexpectedKeysAreErrorsByName) {
  for (const StateDictKind kind : {StateDictKind::full, StateDictKind::sharded, StateDictKind::local}) {
    run_local_ranks(2, [&](auto world) {
      RankRig rig(std::move(world));
      Toy toy(rig);
      toy.set(kind);
      StateDict dict = state_dict(toy.model);
      const std::string key = kind == StateDictKind::local ? "1.flat_param" : "1.out.weight";
      dict["stranger"] = dict.at(key);
      dict.erase(key);
      const std::string text = error_of<ConfigError>([&] { load_state_dict(toy.model, dict); });
      if (kind == StateDictKind::sharded) {  // who has what is known only after the first check
        EXPECT_NE(text.find("unexpected stranger"), std::string::npos) << text;
        dict.erase("stranger");
        EXPECT_NE(error_of<ConfigError>([&] { load_state_dict(toy.model, dict); }).find("missing " + key), std::string::npos);
        dict["stranger"] = dict.at("0.bias");
      } else {
        EXPECT_NE(text.find("missing " + key + "; unexpected stranger"), std::string::npos) << text;
      }
      const LoadStateDictReport report = load_state_dict(toy.model, dict, {.strict = false});
      EXPECT_EQ(report.missing, std::vector<std::string>{key});
      EXPECT_EQ(report.unexpected, std::vector<std::string>{"stranger"});
      expect_numbered(rig, toy);
    });
  }
}

// E2: a rank whose dict is damaged stops all ranks, with its name; nothing has changed.
TEST(E2StateDict, OneRanksMistakeIsEveryRanksError) {
  run_local_ranks(3, [](auto world) {
    RankRig rig(std::move(world));
    Toy toy(rig);
    StateDict dict = state_dict(toy.model);
    if (rig.rank() == 1) dict.erase("0.bias");
    toy.clear();
    const std::string text = error_of<ConfigError>([&] { load_state_dict(toy.model, dict); });
    EXPECT_EQ(text.find("rank 1: the state dict does not fit the model: missing 0.bias"), 0U) << text;
    for (const Unit* unit : toy.root().units()) EXPECT_EQ(unit->storage()->master().as<float>()[0], -1);
  });
}

// E2: another shape, numel, padding or dtype is an error by name.
TEST(E2StateDict, AnotherShapeNumelOrPaddingIsAnErrorByName) {
  run_local_ranks(2, [](auto world) {
    RankRig rig(std::move(world));
    Toy toy(rig);
    StateDict dict = state_dict(toy.model);
    const auto loading = [&] { return error_of<ConfigError>([&] { load_state_dict(toy.model, dict); }); };
    const StateTensor bias = dict.at("0.bias");
    dict["0.bias"] = StateTensor::on_host(Shape{6}, DType::f32);
    EXPECT_NE(loading().find("0.bias has shape [6] in the state dict, [5] in the model"), std::string::npos) << loading();
    dict["0.bias"] = StateTensor::on_host(Shape{5}, DType::i32);
    EXPECT_NE(loading().find("0.bias has dtype"), std::string::npos) << loading();
    dict["0.bias"] = bias;
    dict["0.bias"].set_part_of(Shape{9}, 0);
    EXPECT_NE(loading().find("0.bias has shape [9]"), std::string::npos) << loading();
    toy.set(StateDictKind::local);
    dict = state_dict(toy.model);
    const StateTensor shard = dict.at("1.flat_param");
    dict["1.flat_param"] = StateTensor::on_host(Shape{shard.numel() + 1}, DType::f32);
    EXPECT_NE(loading().find("1.flat_param has"), std::string::npos) << loading();
    dict["1.flat_param"] = shard;
    dict["1.flat_param"].set_part_of(Shape{shard.global_shape()[0] + 2}, shard.row_begin());
    EXPECT_NE(loading().find("1.flat_param begins at"), std::string::npos) << loading();
  });
}

// E2: refused inside a forward, and while full parameters are summoned.
TEST(E2StateDict, IsRefusedInsideAPass) {
  /// Asks for its root's state dict in the middle of its forward.
  class Nosy final : public nn::Module {
   public:
    Nosy() : Module("nosy") { add_parameter("weight", {2}, nn::Initializer::ones(), false); }
    std::string text;

   protected:
    nn::Tensors do_forward(nn::Context&, nn::Tensors xs, nn::Record*) override {
      text = error_of<Error>([&] { static_cast<void>(state_dict(*this)); });
      text += error_of<Error>([&] { load_state_dict(*this, {}); });
      return xs;
    }
    nn::Tensors do_backward(nn::Context&, nn::Record&, nn::Tensors dys) override { return dys; }
  };
  run_local_ranks(2, [](auto world) {
    RankRig rig(std::move(world));
    Nosy model;
    fully_shard(model, rig.device_mesh(), {});
    root_of(model).initialize(1);
    static_cast<void>(model.forward(rig.context(), nn::Tensors(1), nullptr));
    EXPECT_NE(model.text.find("saved while the root is in forward"), std::string::npos) << model.text;
    EXPECT_NE(model.text.find("loaded while the root is in forward"), std::string::npos) << model.text;
    const SummonFullParams full(model);
    EXPECT_THROW(static_cast<void>(state_dict(model)), Error);
  });
}

// E4: from rank 0, by broadcast; the other ranks have nothing.
TEST(E4Load, FromRank0) {
  for (const int shard_size : {4, 2, 1}) {
    run_local_ranks(4, [&](auto world) {
      RankRig rig(std::move(world), shard_size);
      Toy toy(rig);
      toy.set({.model = FullStateDictConfig{.offload_to_cpu = true, .rank0_only = true}});
      const StateDict dict = state_dict(toy.model);
      EXPECT_EQ(dict.empty(), rig.rank() != 0);
      toy.clear();
      load_state_dict(toy.model, dict, {.from_rank0 = true});
      expect_numbered(rig, toy, fmt::format("shard size {}", shard_size));
      EXPECT_NE(rig.values(toy.norm->mean().data)[0], -1);
      // Without it, rank 1 lacks everything.
      EXPECT_EQ(error_of<ConfigError>([&] { load_state_dict(toy.model, dict); }).find("rank 1: "), 0U);
      toy.set(StateDictKind::sharded);
      EXPECT_THROW(load_state_dict(toy.model, dict, {.from_rank0 = true}), ConfigError);
    });
  }
}

/// Every rank's sharded dict of a world of `ranks`, on the host.
std::vector<StateDict> sharded_dicts(int ranks, int shard_size) {
  std::vector<StateDict> dicts(static_cast<std::size_t>(ranks));
  run_local_ranks(ranks, [&](auto world) {
    RankRig rig(std::move(world), shard_size);
    Toy toy(rig);
    StateDictSettings settings = StateDictSettings::of(StateDictKind::sharded);
    settings.model = ShardedStateDictConfig{.offload_to_cpu = true};
    toy.set(settings);
    dicts[static_cast<std::size_t>(rig.rank())] = state_dict(toy.model);
  });
  return dicts;
}

// E4: into another mesh: pieces of one world, dealt out to the ranks of another one.
TEST(E4Load, IntoAnotherMesh) {
  for (const auto& [from, from_shard] : {std::pair{4, 4}, {3, 3}, {4, 2}, {2, 1}}) {
    const std::vector<StateDict> dicts = sharded_dicts(from, from_shard);
    for (const auto& [to, to_shard] : {std::pair{1, 1}, {2, 2}, {3, 3}, {4, 2}}) {
      run_local_ranks(to, [&, from = from, to = to, to_shard = to_shard](auto world) {
        RankRig rig(std::move(world), to_shard);
        Toy toy(rig);
        toy.clear();
        std::vector<StateDict> mine;
        for (int r = rig.rank(); r < from; r += to) mine.push_back(dicts[static_cast<std::size_t>(r)]);
        load_state_dict_pieces(toy.model, mine);
        expect_numbered(rig, toy, fmt::format("from {} ranks to {}", from, to));
      });
    }
  }
}

// E4: pieces may overlap: rows [0, 2) and [2, 4) of a world of three, [3, 5) of a world of two.
TEST(E4Load, PiecesMayOverlap) {
  const std::vector<StateDict> of_three = sharded_dicts(3, 3), of_two = sharded_dicts(2, 2);
  run_local_ranks(2, [&](auto world) {
    RankRig rig(std::move(world));
    Toy toy(rig);
    toy.clear();
    std::vector<StateDict> mine{rig.rank() == 0 ? of_three[1] : of_three[0]};
    if (rig.rank() == 0) mine.push_back(of_two[1]);
    load_state_dict_pieces(toy.model, mine);
    expect_numbered(rig, toy);
  });
}

// E4: rows that nobody has are named, on all ranks.
TEST(E4Load, MissingRowsAreNamed) {
  const std::vector<StateDict> dicts = sharded_dicts(4, 4);
  run_local_ranks(2, [&](auto world) {
    RankRig rig(std::move(world));
    Toy toy(rig);
    const std::string text = error_of<ConfigError>([&] {
      load_state_dict_pieces(toy.model, {&dicts[rig.rank() == 0 ? 0 : 2], 1});
    });
    EXPECT_EQ(text, "no rank has rows [2, 4) of 0.weight [5, 3] in its state dict");
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
      for (const ShardedParameter& p : toy.root().parameters()) {
        const auto n = std::ranges::find(kParameters, p.piece.parameter, &std::pair<std::string, Shape>::first) -
                       kParameters.begin();
        for (std::int64_t i = 0; i < p.piece.numel(); ++i) {
          EXPECT_EQ(p.master().as<float>()[i], static_cast<float>(n * 1000 + p.piece.begin + i)) << p.piece.parameter;
        }
      }
    }
  });
}

}  // namespace
}  // namespace mica::fsdp::testing
