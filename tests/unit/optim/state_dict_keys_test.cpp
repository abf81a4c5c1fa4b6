// SPDX-License-Identifier: Apache-2.0
// Keys of optimizer state dicts, by name and by id, and dicts that do not fit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "unit/optim/fsdp_reference.hpp"
#include "unit/optim/trained_state.hpp"

namespace mica::optim {
namespace {

using namespace state_dicts;  // NOLINT(google-build-using-namespace)
using test::fsdp_reference;
using test::ReferenceRank;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

std::vector<ParamGroup> two_groups() { return {{.parameters = {"u1.c", "u0.a"}}, {.parameters = {"u0.b"}, .lr_factor = 0.5}}; }

// E3: ids count through the groups: c 0, a 1, b 2.
TEST(OptimStateDict, E3_KeysByNameOrByIdAndBack) {
  run_local_ranks(2, [](auto world) {
    ShardedWeights model(std::move(world), units());
    const auto optimizer = make_adamw(model.root(), {}, two_groups());
    train_step(model, *optimizer, 1);
    const OptimStateDict named = full_optim_state_dict(*optimizer, false);
    EXPECT_THAT(named.state, SizeIs(3));
    EXPECT_EQ(named.groups[1].options.at("lr_factor"), 0.5);
    const OptimStateDict ids = rekey_optim_state_dict(named, KeyKind::id, *optimizer);
    std::vector<ParameterKey> keys;
    for (const auto& [key, state] : ids.state) keys.push_back(key);
    EXPECT_THAT(keys, ElementsAre(ParameterKey(0), ParameterKey(1), ParameterKey(2)));
    EXPECT_EQ(ids.state.at(0).tensors.at("exp_avg").shape(), (Shape{7, 2}));
    EXPECT_THAT(ids.groups[0].parameters, ElementsAre(ParameterKey(0), ParameterKey(1)));
    EXPECT_THAT(ids.groups[1].parameters, ElementsAre(ParameterKey(2)));
    const OptimStateDict back = rekey_optim_state_dict(ids, KeyKind::name, *optimizer);
    EXPECT_THAT(back.groups[0].parameters, ElementsAre(ParameterKey("u0.a"), ParameterKey("u1.c"))) << "sorted";
    EXPECT_EQ(back.state.at("u1.c").scalars, named.state.at("u1.c").scalars);
    // Already right: unchanged, the order of a group as well.
    const OptimStateDict same = rekey_optim_state_dict(named, KeyKind::name, *optimizer);
    EXPECT_THAT(same.groups[0].parameters, ElementsAre(ParameterKey("u1.c"), ParameterKey("u0.a")));
    // Ids are loaded as well as names.
    ShardedWeights fresh_model(model.device_mesh().mesh().world().duplicate("fresh"), units());
    const auto fresh = make_adamw(fresh_model.root(), {}, two_groups());
    load_optim_state_dict(*fresh, shard_full_optim_state_dict(ids, *fresh));
    EXPECT_EQ(values_of(full_optim_state_dict(*fresh, false).state.at("u1.c").tensors.at("exp_avg")),
              values_of(named.state.at("u1.c").tensors.at("exp_avg")));
  });
}

// E3: mixed kinds are an error; parameters that are not the optimizer's are dropped.
TEST(OptimStateDict, E3_KeysOfBothKindsOrOfOthers) {
  run_local_ranks(1, [](auto world) {
    ShardedWeights model(std::move(world), units());
    const auto optimizer = make_adamw(model.root(), {}, two_groups());
    OptimStateDict mixed;
    mixed.state["u0.a"];
    mixed.state[3];
    EXPECT_THAT(error_of([&] { static_cast<void>(rekey_optim_state_dict(mixed, KeyKind::id, *optimizer)); }),
                HasSubstr("has 1 keys that are names and 1 that are ids"));
    OptimStateDict more;
    more.state["u0.a"];
    more.state["gone.weight"];
    more.groups = {{{"u1.d", "u0.a"}, {}}};
    const OptimStateDict ids = rekey_optim_state_dict(more, KeyKind::id, *optimizer);
    EXPECT_THAT(ids.state, SizeIs(1));
    EXPECT_THAT(ids.groups[0].parameters, ElementsAre(ParameterKey(1)));
  });
}

TEST(OptimStateDict, WhatDoesNotFitIsNamedAndNothingChanges) {
  const OptimStateDict full = trained({1, 1}, adamw), sgd = trained({1, 1}, momentum);
  run_local_ranks(2, [&](auto world) {
    const bool has_a = world->rank() == 0;  // the 65 elements of u0 (with their gap) are cut behind a
    ShardedWeights model(std::move(world), units());
    const auto optimizer = make_adamw(model.root(), {});
    train_step(model, *optimizer, 1);
    const Values before = values_of(full_optim_state_dict(*optimizer, false).state.at("u0.a").tensors.at("exp_avg"));
    const auto refused = [&](const std::function<void(OptimStateDict&)>& change, bool local = false) {
      OptimStateDict dict = local ? shard_full_optim_state_dict(full, *optimizer) : full;
      change(dict);
      return error_of([&] { load_optim_state_dict(*optimizer, local ? dict : shard_full_optim_state_dict(dict, *optimizer)); });
    };
    EXPECT_THAT(refused([](auto& d) { d.state["gone"] = d.state.at("u0.a"); }), HasSubstr("state of gone, which is no parameter"));
    EXPECT_THAT(refused([](auto& d) {
                  d.state.at("u0.a").tensors["exp_avg"] = fsdp::StateTensor::on_host({3, 5}, DType::f32);
                }),
                HasSubstr("exp_avg of parameter u0.a is fp32 [3, 5] in the state dict, expected fp32 [5, 3]"));
    EXPECT_THAT(refused([](auto& d) { d.state.at("u0.a").scalars.clear(); }), HasSubstr("no step of parameter u0.a"));
    EXPECT_THAT(refused([](auto& d) { d.state.at("u0.a").scalars["step"] = 1.5; }), HasSubstr("step 1.5 of parameter u0.a"));
    EXPECT_THAT(refused([](auto& d) { d.state.at("u0.a").tensors.erase("exp_avg"); }), HasSubstr("no exp_avg of parameter u0.a"));
    EXPECT_THAT(refused([](auto& d) { d.state.at("u0.a").tensors["exp_avg"] = fsdp::StateTensor::on_host({4}, DType::f32); }, true),
                HasSubstr(has_a ? "has shape [4] in the state dict" : ""));
    EXPECT_THAT(error_of([&] { load_optim_state_dict(*optimizer, shard_full_optim_state_dict(sgd, *optimizer)); }),
                HasSubstr("momentum_buffer of parameter"));
    EXPECT_EQ(values_of(full_optim_state_dict(*optimizer, false).state.at("u0.a").tensors.at("exp_avg")), before);
    fsdp::BackwardPass pass(model.root());
    EXPECT_THAT(error_of([&] { static_cast<void>(full_optim_state_dict(*optimizer)); }), HasSubstr("while the root is in backward"));
    pass.finish();
  });
}

// E3: PyTorch's keys, kinds, shapes and groups. body.extra, which is never called, shares the root's flat parameter: in
// PyTorch it has zero gradients, as here without original-parameter mode; with it Mica leaves it out.
TEST(FsdpReference, E3_OptimizerStateDictKeys) {
  for (const nlohmann::json& reference : fsdp_reference()["optim"]) {
    for (const bool original : {false, true}) {
      const auto frozen = reference["frozen"].get<std::vector<std::string>>();
      if (!original && !frozen.empty()) continue;  // one unit with frozen and trainable parameters: refused (B4)
      run_local_ranks(2, [&](auto world) {
        ReferenceRank rank(std::move(world), {.options = {.root = fsdp::RootOptions{.use_orig_params = original}}, .frozen = frozen});
        std::vector<ParamGroup> groups;
        for (const nlohmann::json& group : reference["groups"]) groups.push_back({.parameters = group.get<std::vector<std::string>>()});
        const std::string kind = reference["kind"].get<std::string>();
        const auto optimizer = kind == "adam" ? make_adamw(rank.root(), {}, groups)
                                              : make_sgd(rank.root(), {.momentum = kind == "momentum" ? 0.9 : 0.0}, groups);
        for (std::size_t step = 0; step < 3; ++step) {
          rank.pass(step, rank.rank());
          optimizer->step({.lr = 0.01});
          rank.root().zero_grad();
        }
        const OptimStateDict full = full_optim_state_dict(*optimizer, false);
        const OptimStateDict ids = rekey_optim_state_dict(full, KeyKind::id, *optimizer);
        std::size_t num_expected = 0;
        for (const auto& [name, kinds] : reference["state"].items()) {
          if (original && name.find("extra") != std::string::npos) {
            EXPECT_FALSE(full.state.contains(name));
            continue;
          }
          ++num_expected;
          ASSERT_TRUE(full.state.contains(name)) << name;
          const ParameterState& state = full.state.at(name);
          EXPECT_EQ(state.tensors.size() + state.scalars.size(), kinds.size()) << name;
          for (const auto& [each, value] : kinds.items()) {
            if (value.is_number()) {
              EXPECT_EQ(state.scalars.at(each), value.template get<double>()) << name << " " << each;
            } else {
              const auto dims = value.template get<std::vector<std::int64_t>>();
              EXPECT_EQ(state.tensors.at(each).shape(), Shape(std::span(dims))) << name << " " << each;
            }
          }
        }
        EXPECT_EQ(full.state.size(), num_expected);
        for (std::size_t g = 0; g < groups.size(); ++g) {
          std::vector<ParameterKey> names;
          for (const nlohmann::json& name : reference["groups"][g]) names.emplace_back(name.get<std::string>());
          EXPECT_EQ(full.groups[g].parameters, names);
          if (reference["id_groups"][g][0].is_string()) continue;  // without any state PyTorch leaves the names
          std::vector<ParameterKey> numbers;
          for (const nlohmann::json& id : reference["id_groups"][g]) numbers.emplace_back(id.get<std::int64_t>());
          EXPECT_EQ(ids.groups[g].parameters, numbers);
        }
        for (const nlohmann::json& id : reference["ids"]) EXPECT_TRUE(original || ids.state.contains(id.get<std::int64_t>())) << id;
      });
    }
  }
}

}  // namespace
}  // namespace mica::optim
