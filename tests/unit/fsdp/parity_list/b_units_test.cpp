// SPDX-License-Identifier: Apache-2.0
// docs/parity.md B4, B8, B9: frozen parameters, the printed tree, roots.
#include "mica/fsdp/name_patterns.hpp"
#include "mica/fsdp/unit_tree.hpp"
#include "mica/fsdp/wrap_policy.hpp"

#include "rank_rig.hpp"
#include "refusal.hpp"
#include "tree_module.hpp"

namespace mica::fsdp {
namespace {

using testing::expect_refusal;
using testing::RankRig;
using testing::TreeModule;

TEST(Units, B4_AUnitIsAllFrozenOrMixedInOriginalParameterModeOnly) {
  run_local_ranks(2, [](auto world) {
    RankRig rig(std::move(world));
    const auto make_model = [] {
      auto model = std::make_unique<TreeModule>("root", 1);
      auto& frozen = model->child("frozen", "node", 3);
      frozen.weight().requires_grad = false;
      auto& mixed = model->child("mixed", "node", 4);
      mixed.child("below", "leaf", 5).weight().requires_grad = false;
      return model;
    };
    const auto model = make_model();
    for (const nn::Module::Child& child : model->children()) fully_shard(*child.module, rig.device_mesh(), {});
    fully_shard(*model, rig.device_mesh(), {});
    expect_refusal<ConfigError>([&] { (void)root_of(*model); },
                                {"unit mixed", "mixed.below.weight", "mixed.weight", "fsdp.use_orig_params=true"});

    const auto allowed = make_model();
    const Options options{.root = RootOptions{.use_orig_params = true}};
    for (const nn::Module::Child& child : allowed->children()) fully_shard(*child.module, rig.device_mesh(), options);
    fully_shard(*allowed, rig.device_mesh(), options);
    Root& root = root_of(*allowed);
    EXPECT_FALSE(root.units()[1]->storage()->is_trainable());
    EXPECT_TRUE(root.units()[2]->storage()->is_trainable());
    root.initialize(1);
    nn::Record record;
    const nn::Tensors ys = allowed->forward(rig.context(), {Tensor()}, &record);
    allowed->backward(rig.context(), std::move(record), ys);
    // Trainable units alone are reduced.
    EXPECT_EQ(rig.device_mesh().reduce_group().counts().of(Collective::reduce_scatter), 2);
    EXPECT_FALSE(root.units()[1]->storage()->sharded_grad());
  });
}

// What fsdp.freeze (B4) and fsdp.ignore (B3) give.
TEST(Units, B4_PatternsNameParametersToFreezeOrIgnore) {
  TreeModule model("root", 1);
  model.child("h", "node", 2).child("attn", "node", 3);
  const auto names = [&](const std::vector<std::string>& patterns) {
    std::vector<std::int64_t> numels;
    for (const nn::Parameter* p : parameters_matching(model, patterns, "fsdp.freeze")) numels.push_back(p->shape.numel());
    return numels;
  };
  EXPECT_EQ(names({"h.*"}), (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(names({"*.attn.*", "weight"}), (std::vector<std::int64_t>{1, 3}));
  EXPECT_EQ(names({}), (std::vector<std::int64_t>{}));
  expect_refusal<ConfigError>([&] { (void)names({"h.*", "*.bias"}); }, {"fsdp.freeze", "'*.bias'", "names are like weight"});
}

TEST(Units, B8_ThePrintedTree) {
  run_local_ranks(2, [](auto world) {
    RankRig rig(std::move(world));
    TreeModule model("root", 5);
    auto& block = model.child("block", "block", 130);
    auto& inner = block.child("inner", "node", 7);
    auto& bare = model.child("bare", "node", 0);
    auto& mine = model.child("mine", "node", 9);
    Options options{.mixed_precision = {DType::bf16, DType::f32, {}}, .ignored_modules = {&mine}};
    options.strategy = Strategy::no_shard;
    fully_shard(inner, rig.device_mesh(), options);
    options.strategy = Strategy::shard_grad_op;
    fully_shard(block, rig.device_mesh(), options);
    fully_shard(bare, rig.device_mesh(), options);
    fully_shard(model, rig.device_mesh(), {.ignored_modules = {&mine}});
    EXPECT_EQ(root_of(model).describe(),
              "unit                             parameters       per rank  padding  strategy           param  reduce\n"
              "root                                      5              3        1  full_shard         fp32   fp32\n"
              "  block                                 130             65        0  shard_grad_op      bf16   fp32\n"
              "    block.inner                           7              7        0  no_shard           bf16   fp32\n"
              "  bare                                 none\n"
              "mine.weight                               9              9        0  ignored\n");
  });
}

TEST(Units, B9_ARootIsFoundAtFirstUseAndSeveralAreIndependent) {
  run_local_ranks(2, [](auto world) {
    RankRig rig(std::move(world));
    TreeModule model("plain", 0);
    auto& a = model.child("a", "tower", 3);
    auto& a_inside = a.child("inside", "node", 5);
    auto& b = model.child("b", "tower", 4);
    fully_shard(a_inside, rig.device_mesh(), {});
    fully_shard(a, rig.device_mesh(), {});
    fully_shard(b, rig.device_mesh(), {});
    const std::vector<Unit*> units = units_of(model);
    ASSERT_EQ(units.size(), 3U);
    for (const Unit* unit : units) EXPECT_FALSE(unit->is_claimed()) << "listing units is no use";
    root_of(a).initialize(1);
    EXPECT_TRUE(units[0]->is_claimed());
    EXPECT_TRUE(units[1]->is_claimed());
    EXPECT_FALSE(units[2]->is_claimed());
    const std::vector<Root*> roots = roots_of(model);
    ASSERT_EQ(roots.size(), 2U);
    EXPECT_EQ(roots[0], &root_of(a));
    EXPECT_EQ(roots[1], &root_of(b));
    roots[1]->initialize(1);
    // Forward and backward through both, though nothing is around them.
    nn::Record record;
    const nn::Tensors ys = model.forward(rig.context(), {Tensor()}, &record);
    model.backward(rig.context(), std::move(record), ys);
    for (const Root* root : roots) {
      for (const Piece& p : root->pieces()) {
        for (const float g : rig.values(root->grad(p))) EXPECT_EQ(g, 1);
      }
    }
  });
}

TEST(Units, B9_WhatHasBeenARootCannotBeNested) {
  run_local_ranks(2, [](auto world) {
    RankRig rig(std::move(world));
    TreeModule model("outer", 2);
    auto& inner = model.child("inner", "node", 3);
    fully_shard(inner, rig.device_mesh(), {});
    root_of(inner).initialize(1);
    fully_shard(model, rig.device_mesh(), {});
    expect_refusal<ConfigError>([&] { (void)root_of(model); }, {"inner", "root of its own", "outer"});
    // The refused root has claimed nothing: the inner one goes on.
    EXPECT_NO_THROW(static_cast<void>(inner.forward(rig.context(), {Tensor()}, nullptr)));
  });
}

TEST(Units, B9_AModuleCannotBecomeAUnitOnceItsParametersAreInUse) {
  run_local_ranks(2, [](auto world) {
    RankRig rig(std::move(world));
    TreeModule model("outer", 2);
    auto& inner = model.child("inner", "node", 3);
    fully_shard(model, rig.device_mesh(), {});
    root_of(model).initialize(1);
    fully_shard(inner, rig.device_mesh(), {});
    expect_refusal<ConfigError>([&] { (void)root_of(inner); }, {"weight", "[3]", "belongs to unit root already"});
  });
}

TEST(Units, B9_AModuleInsideAUnitCannotRunByItselfWhileItIsSharded) {
  run_local_ranks(2, [](auto world) {
    RankRig rig(std::move(world));
    TreeModule model("outer", 2);
    auto& inner = model.child("inner", "tower", 3);
    fully_shard(model, rig.device_mesh(), {});
    root_of(model).initialize(1);
    expect_refusal<Error>([&] { static_cast<void>(inner.forward(rig.context(), {Tensor()}, nullptr)); },
                          {"'weight' [3]", "'tower'", "sharded"});
  });
}

TEST(Units, B5_AParameterOfAModuleOutsideTheRootIsRefused) {
  run_local_ranks(2, [](auto world) {
    RankRig rig(std::move(world));
    TreeModule model("plain", 0);
    auto& owner = model.child("owner", "node", 3);
    auto& user = model.child("user", "node", 4);
    user.share(owner.weight());
    fully_shard(user, rig.device_mesh(), {});
    expect_refusal<ConfigError>([&] { (void)root_of(user); }, {"'weight' [3]", "outside"});
  });
}

}  // namespace
}  // namespace mica::fsdp
