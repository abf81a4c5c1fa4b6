// SPDX-License-Identifier: Apache-2.0
// docs/parity.md B1 to B3, B5, B6: which modules become units, and what is left alone.
#include "mica/fsdp/unit_tree.hpp"
#include "mica/fsdp/wrap_policy.hpp"
#include "mica/nn/models/gpt2.hpp"
#include "mica/nn/models/mlp.hpp"

#include "rank_rig.hpp"
#include "refusal.hpp"
#include "tree_module.hpp"

namespace mica::fsdp {
namespace {

using testing::expect_refusal;
using testing::make_chain;
using testing::RankRig;
using testing::stderr_of;
using testing::TreeModule;

std::vector<std::string> names_of(const Root& root) {
  std::vector<std::string> names;
  for (const Unit* unit : root.units()) names.push_back(unit->name());
  return names;
}

std::vector<std::string> parameters_of(const Unit& unit) {
  std::vector<std::string> names;
  if (!unit.storage()) return names;
  for (const UnitParameter& p : unit.storage()->parameters()) names.push_back(p.full_name);
  return names;
}

std::vector<std::string> wrapped(nn::Module& model, const WrapPolicy& policy, const Options& options = {}) {
  std::vector<std::string> names;
  run_local_ranks(1, [&](auto world) {
    RankRig rig(std::move(world));
    names = names_of(auto_wrap(model, rig.device_mesh(), options, policy));
    for (Unit* unit : units_of(model)) unit->module().set_hooks(nullptr);
  });
  return names;
}

using Names = std::vector<std::string>;

// Linear(4, 4) = 20 elements, Linear(4, 9) = 45, Linear(9, 2) = 20.
TEST(Wrapping, B1_PoliciesWrapBottomUpAndTheRootHoldsWhatIsLeft) {
  EXPECT_EQ(wrapped(*make_chain({4, 4, 9, 2}), wrap_min_numel(20)), (Names{"root", "0", "1", "2"}));
  EXPECT_EQ(wrapped(*make_chain({4, 4, 9, 2}), wrap_min_numel(21)), (Names{"root", "1"}));
  EXPECT_EQ(wrapped(*make_chain({4, 4, 9, 2}), wrap_min_numel()), (Names{"root"}));
  EXPECT_EQ(wrapped(*make_chain({4, 4}), wrap_nothing()), (Names{"root"}));
  nn::Mlp mlp({.layers = 2, .width = 4, .intermediate_size = 8, .vocab_size = 10});
  EXPECT_EQ(wrapped(mlp, wrap_types({"mlp_block"})), (Names{"root", "blocks.0", "blocks.1"}));
  // Always: every module that has parameters left, children first; so a block has none left and is none.
  EXPECT_EQ(wrapped(mlp, wrap_always()), (Names{"root", "embed", "blocks.0.norm", "blocks.0.up", "blocks.0.down", "blocks.1.norm",
                                                "blocks.1.up", "blocks.1.down", "norm", "head"}));
}

TEST(Wrapping, B1_SizePolicyCountsWhatNoUnitHoldsYet) {
  // outer {own 5} > {a: 30, b: 10}: from 15 on a is a unit, and outer with 5 + 10 too; from 16 on only a.
  TreeModule root("root", 1);
  auto& outer = root.child("outer", "node", 5);
  outer.child("a", "node", 30);
  outer.child("b", "node", 10);
  EXPECT_EQ(wrapped(root, wrap_min_numel(15)), (Names{"root", "outer", "outer.a"}));
  EXPECT_EQ(wrapped(root, wrap_min_numel(16)), (Names{"root", "outer.a"}));
}

TEST(Wrapping, B1_CustomPolicySeesDescentAndWhatIsLeftAndMayGiveOptions) {
  run_local_ranks(2, [](auto world) {
    RankRig rig(std::move(world));
    TreeModule model("root", 1);
    model.child("closed", "closed", 2).child("inside", "node", 3);
    model.child("open", "open", 4).child("inside", "node", 5);
    std::vector<std::string> asked;
    const WrapPolicy policy = [&](const WrapQuestion& q) -> WrapAnswer {
      asked.push_back(fmt::format("{} {} {}", q.descends() ? "descend" : "wrap", q.module.type_name(), q.unwrapped_numel));
      if (q.descends()) return q.module.type_name() != "closed";
      if (q.module.type_name() == "open") return false;
      Options own = q.options;
      own.strategy = Strategy::shard_grad_op;
      return own;
    };
    Root& root_runtime = auto_wrap(model, rig.device_mesh(), {}, policy);
    EXPECT_EQ(asked, (std::vector<std::string>{"descend root 15", "descend closed 5", "wrap closed 5", "descend open 9", "descend node 5",
                                               "wrap node 5", "wrap open 4"}));
    EXPECT_EQ(names_of(root_runtime), (Names{"root", "closed", "open.inside"}));
    EXPECT_EQ(root_runtime.units()[0]->options().strategy, Strategy::full_shard);
    EXPECT_EQ(root_runtime.units()[1]->options().strategy, Strategy::shard_grad_op);
    EXPECT_EQ(parameters_of(*root_runtime.units()[0]), (Names{"weight", "open.weight"}));
  });
}

// B1, B3: what is ignored is not the policy's to decide, and counts in no unit.
TEST(Wrapping, B3_APolicyIsNotAskedAboutWhatIsIgnored) {
  run_local_ranks(1, [](auto world) {
    RankRig rig(std::move(world));
    TreeModule model("root", 1);
    TreeModule& ignored = model.child("ignored", "node", 7);
    ignored.child("inside", "node", 2);
    model.child("seen", "node", 5);
    std::vector<std::string> asked;
    const WrapPolicy policy = [&](const WrapQuestion& q) {
      asked.push_back(fmt::format("{} {}", q.descends() ? "descend" : "wrap", q.unwrapped_numel));
      return q.descends();
    };
    auto_wrap(model, rig.device_mesh(), {.strategy = Strategy::no_shard, .ignored_modules = {&ignored}}, policy);
    EXPECT_EQ(asked, (std::vector<std::string>{"descend 6", "descend 5", "wrap 5"}));
  });
}

TEST(Wrapping, B1_AContainerAsAUnitWarns) {
  const std::string log = stderr_of([] {
    run_local_ranks(1, [](auto world) {
      RankRig rig(std::move(world), 0, Logger::to_stderr(LogLevel::warn, ""));
      TreeModule list("module_list", 0, /*has_forward=*/false);
      list.child("0", "node", 3);
      fully_shard(list, rig.device_mesh(), {.strategy = Strategy::no_shard});
    });
  });
  EXPECT_NE(log.find("module_list becomes a unit, but has no forward of its own"), std::string::npos) << log;
  TreeModule model("root", 1);
  model.child("list", "module_list", 0, /*has_forward=*/false).child("0", "node", 3);
  EXPECT_EQ(wrapped(model, wrap_min_numel(2)), (Names{"root", "list.0"}));
}

TEST(Wrapping, B2_AWrappedModuleIsSkippedByAPolicyAndRefusedByHand) {
  run_local_ranks(2, [](auto world) {
    RankRig rig(std::move(world));
    TreeModule model("root", 1);
    auto& mine = model.child("mine", "special", 8);
    mine.child("inside", "node", 9);
    model.child("other", "node", 10);
    fully_shard(mine, rig.device_mesh(), {.strategy = Strategy::no_shard});
    expect_refusal<ConfigError>([&] { fully_shard(mine, rig.device_mesh(), {}); }, {"special", "unit already"});
    Root& root = auto_wrap(model, rig.device_mesh(), {}, wrap_always());
    EXPECT_EQ(names_of(root), (Names{"root", "mine", "other"}));
    EXPECT_EQ(root.units()[1]->options().strategy, Strategy::no_shard);
    // Nothing is flattened twice.
    EXPECT_EQ(parameters_of(*root.units()[0]), (Names{"weight"}));
    EXPECT_EQ(parameters_of(*root.units()[1]), (Names{"mine.weight", "mine.inside.weight"}));
    EXPECT_EQ(parameters_of(*root.units()[2]), (Names{"other.weight"}));
    expect_refusal<ConfigError>([&] { auto_wrap(model, rig.device_mesh(), {}, wrap_always()); }, {"root", "unit already"});
  });
}

TEST(Wrapping, B3_IgnoredModulesAreLeftWholeWithTheirSubtreeButNotTheUnitsInside) {
  run_local_ranks(2, [](auto world) {
    RankRig rig(std::move(world));
    TreeModule model("root", 1);
    auto& left = model.child("left", "node", 3);
    left.child("below", "node", 4);
    auto& unit = left.child("unit", "node", 5);
    model.child("right", "node", 6);
    fully_shard(unit, rig.device_mesh(), {});
    Root& root = auto_wrap(model, rig.device_mesh(), {.ignored_modules = {&left}}, wrap_always());
    EXPECT_EQ(names_of(root), (Names{"root", "left.unit", "right"}));
    Names ignored;
    for (const UnitParameter& p : root.ignored_parameters()) ignored.push_back(p.full_name);
    EXPECT_EQ(ignored, (Names{"left.weight", "left.below.weight"}));
    EXPECT_TRUE(root.ignores(left));
    EXPECT_FALSE(root.ignores(unit));
    // Not initialised; and a forward without their data is refused by name and shape.
    root.initialize(1);
    EXPECT_FALSE(left.weight().data);
    expect_refusal<Error>([&] { static_cast<void>(model.forward(rig.context(), {Tensor()}, nullptr)); }, {"left.weight", "[3]", "ignored"});
    // Neither moved nor cast.
    std::vector<float> mine(3, 7.0F), below(4, 8.0F);
    left.weight().data = {mine.data(), Shape{3}, DType::f32};
    left.children()[0].module->own_parameters()[0]->data = {below.data(), Shape{4}, DType::f32};
    left.weight().requires_grad = left.children()[0].module->own_parameters()[0]->requires_grad = false;
    static_cast<void>(model.forward(rig.context(), {Tensor()}, nullptr));
    EXPECT_EQ(left.weight().data.data, mine.data());
    EXPECT_EQ(mine, std::vector<float>(3, 7.0F));
    for (const Piece& p : root.pieces()) EXPECT_NE(root.parameter(p).full_name, "left.weight");
    left.weight().data = left.children()[0].module->own_parameters()[0]->data = {};
  });
}

TEST(Wrapping, B3_ParentsInheritTheirChildrensIgnoredSets) {
  run_local_ranks(2, [](auto world) {
    RankRig rig(std::move(world));
    TreeModule model("root", 1);
    auto& inner = model.child("inner", "node", 2);
    auto& scale = inner.child("scale", "node", 3);
    fully_shard(inner, rig.device_mesh(), {.ignored_parameters = {&scale.weight()}});
    fully_shard(model, rig.device_mesh(), {});
    Root& root = root_of(model);
    ASSERT_EQ(root.ignored_parameters().size(), 1U);
    EXPECT_EQ(root.ignored_parameters()[0].full_name, "inner.scale.weight");
    EXPECT_EQ(parameters_of(*root.units()[0]), (Names{"weight"}));
    EXPECT_EQ(parameters_of(*root.units()[1]), (Names{"inner.weight"}));
  });
}

TEST(Wrapping, B3_WhatCannotBeIgnoredIsRefused) {
  run_local_ranks(2, [](auto world) {
    RankRig rig(std::move(world));
    TreeModule model("root", 1), stranger("stranger", 2);
    auto& a = model.child("a", "layer", 2);
    auto& b = model.child("b", "layer", 3);
    auto& inside = b.child("inside", "leaf", 4);
    // Both at once.
    expect_refusal<ConfigError>(
        [&] { fully_shard(model, rig.device_mesh(), {.ignored_modules = {&a}, .ignored_parameters = {&a.weight()}}); },
        {"1 ignored modules and 1 ignored parameters"});
    // A unit.
    fully_shard(a, rig.device_mesh(), {});
    expect_refusal<ConfigError>([&] { fully_shard(model, rig.device_mesh(), {.ignored_modules = {&a}}); }, {"layer", "unit already"});
    // What has become a unit since.
    fully_shard(model, rig.device_mesh(), {.ignored_modules = {&b}});
    fully_shard(b, rig.device_mesh(), {});
    expect_refusal<ConfigError>([&] { (void)root_of(model); }, {"unit root ignores", "layer", "a unit itself"});
    model.set_hooks(nullptr);
    b.set_hooks(nullptr);
    // What an inner unit holds.
    fully_shard(b, rig.device_mesh(), {});
    fully_shard(model, rig.device_mesh(), {.ignored_modules = {&inside}});
    expect_refusal<ConfigError>([&] { (void)root_of(model); }, {"unit root ignores", "b.inside", "belongs to unit b"});
    model.set_hooks(nullptr);
    // What is not there.
    fully_shard(model, rig.device_mesh(), {.ignored_modules = {&stranger}});
    expect_refusal<ConfigError>([&] { (void)root_of(model); }, {"stranger", "not inside"});
    model.set_hooks(nullptr);
    // After every refusal the tree can still be used.
    fully_shard(model, rig.device_mesh(), {});
    EXPECT_EQ(names_of(root_of(model)), (Names{"root", "a", "b"}));
  });
}

TEST(Wrapping, B3_IgnoringTheRootWarns) {
  const std::string log = stderr_of([] {
    run_local_ranks(1, [](auto world) {
      RankRig rig(std::move(world), 0, Logger::to_stderr(LogLevel::warn, ""));
      TreeModule model("root", 4);
      fully_shard(model, rig.device_mesh(), {.strategy = Strategy::no_shard, .ignored_modules = {&model}});
      EXPECT_EQ(root_of(model).ignored_parameters().size(), 1U);
      EXPECT_EQ(root_of(model).units()[0]->storage(), nullptr);
    });
  });
  EXPECT_NE(log.find("ignores itself"), std::string::npos) << log;
}

TEST(Wrapping, B3_AParameterNeitherInAUnitNorIgnoredIsRefusedWithNameAndShape) {
  run_local_ranks(2, [](auto world) {
    RankRig rig(std::move(world));
    TreeModule model("root", 0);
    fully_shard(model.child("a", "layer", 2), rig.device_mesh(), {});
    fully_shard(model.child("b", "layer", 2), rig.device_mesh(), {});
    EXPECT_NO_THROW(check_all_assigned(model));
    model.child("late", "layer", 7);
    expect_refusal<ConfigError>([&] { check_all_assigned(model); }, {"late.weight", "[7]"});
    // The same below one root, which claimed its units before.
    TreeModule whole("root", 1);
    fully_shard(whole, rig.device_mesh(), {});
    (void)root_of(whole);
    whole.child("late", "layer", 5);
    expect_refusal<ConfigError>([&] { root_of(whole).initialize(1); }, {"late.weight", "[5]"});
  });
}

TEST(Wrapping, B5_ATiedEmbeddingIsOneParameterOfTheCommonAncestorUnderEveryPolicy) {
  for (const auto& [what, policy] : {std::pair<std::string, WrapPolicy>{"type", wrap_types({"gpt2_block"})},
                                     {"leaves", wrap_types({"embedding", "head_loss"})},
                                     {"always", wrap_always()},
                                     {"size", wrap_min_numel(100)},
                                     {"none", wrap_nothing()}}) {
    run_local_ranks(2, [&, &what = what, &policy = policy](auto world) {
      RankRig rig(std::move(world));
      nn::Gpt2 model({.layers = 1, .heads = 1, .width = 4, .context = 4, .vocab_size = 11, .tie_embeddings = true});
      Root& root = auto_wrap(model, rig.device_mesh(), {}, policy);
      int times = 0;
      for (const Unit* unit : root.units()) {
        for (const std::string& name : parameters_of(*unit)) {
          if (name != "transformer.wte.weight") continue;
          ++times;
          EXPECT_EQ(unit->name(), "root") << what;
        }
      }
      EXPECT_EQ(times, 1) << what;
    });
  }
}

TEST(Wrapping, B5_AManualSplitIsRefusedWithBothNames) {
  run_local_ranks(2, [](auto world) {
    RankRig rig(std::move(world));
    nn::Gpt2 model({.layers = 1, .heads = 1, .width = 4, .context = 4, .vocab_size = 11, .tie_embeddings = true});
    fully_shard(*model.children()[0].module, rig.device_mesh(), {});
    fully_shard(model, rig.device_mesh(), {});
    expect_refusal<ConfigError>([&] { (void)root_of(model); }, {"transformer.wte", "lm_head", "wrapping transformer by hand"});
  });
}

TEST(Wrapping, B6_ScalarsAreRefusedByNameAndAUnitWithoutParametersDoesNothing) {
  run_local_ranks(2, [](auto world) {
    RankRig rig(std::move(world));
    TreeModule model("root", 2);
    model.child("temperature", "node", Shape{});
    fully_shard(model, rig.device_mesh(), {});
    expect_refusal<Error>([&] { (void)root_of(model); }, {"temperature.weight"});

    TreeModule empty("root", 3);
    auto& inside = empty.child("empty", "node", 0);
    fully_shard(inside, rig.device_mesh(), {});
    fully_shard(empty, rig.device_mesh(), {});
    Root& root = root_of(empty);
    EXPECT_EQ(root.units()[1]->storage(), nullptr);
    root.initialize(1);
    EXPECT_NO_THROW(static_cast<void>(empty.forward(rig.context(), {Tensor()}, nullptr)));
    EXPECT_EQ(rig.device_mesh().unshard_group().counts().of(Collective::all_gather), 1);
  });
}

}  // namespace
}  // namespace mica::fsdp
