// SPDX-License-Identifier: Apache-2.0
// docs/parity.md E2: settings of state dicts, and dicts that do not fit.
#include "state_dict_toy.hpp"
#include "support/temporary_folder.hpp"

namespace mica::fsdp::testing {
namespace {

using mica::test::error_of;

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
    const std::string optim = error_of<ConfigError>([&] { toy.set({.kind = StateDictKind::sharded, .model = ShardedStateDictConfig{}}); });
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

}  // namespace
}  // namespace mica::fsdp::testing
