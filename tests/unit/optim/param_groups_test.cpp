// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mica/optim/grad_scaler.hpp"
#include "mica/optim/optimizer_in_backward.hpp"
#include "mica/optim/state_dict.hpp"

#include "unit/optim/sharded_weights.hpp"

namespace mica::optim {
namespace {

using test::ShardedOptions;
using test::ShardedWeights;
using test::Values;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

/// Three parameters in one unit, two in another; fewer elements than ranks in places.
std::vector<std::vector<test::WeightSpec>> grouped_units() {
  return {{{"a", Shape{64}, true, Values(64, 1)}, {"b", Shape{64}, false, Values(64, 2)}, {"c", Shape{3}, true, Values(3, 4)}},
          {{"d", Shape{1}, true, Values(1, 8)}, {"e", Shape{5}, false, Values(5, 16)}}};
}

void fill_grads(ShardedWeights& model, float value) {
  for (test::Weights* part : model.model().parts()) {
    for (test::Weights::Weight& w : part->weights()) {
      w.grad.assign(static_cast<std::size_t>(w.parameter->shape.numel()), value);
    }
  }
}

void step(ShardedWeights& model, Optimizer& optimizer, StepArgs args, float grad = 1) {
  fill_grads(model, grad);
  model.pass();
  optimizer.step(args);
  model.root().zero_grad();
}

float first(ShardedWeights& model, const char* name) { return model.gather(name).front(); }

std::string group_error(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

class Groups : public ::testing::TestWithParam<int> {};

// C3: parameter groups by name, whatever the grouped_units and pieces. SGD: p -= lr * factor * (g + decay * p).
TEST_P(Groups, C3_HaveALearningRateAndADecayOfTheirOwn) {
  run_local_ranks(GetParam(), [](auto world) {
    ShardedWeights model(std::move(world), grouped_units());
    const auto optimizer = make_sgd(model.root(), {.weight_decay = 0.5},
                                    {{.parameters = {"u0.a", "u1.e"}},
                                     {.parameters = {"u1.d", "u0.b"}, .lr_factor = 2, .weight_decay = 1},
                                     {.parameters = {}, .lr_factor = 3}});
    step(model, *optimizer, {.lr = 0.125});
    EXPECT_EQ(first(model, "u0.a"), 1 - 0.125F * (1 + 0.5F * 1));
    EXPECT_EQ(first(model, "u1.e"), 16 - 0.125F * 1) << "a vector does not decay by itself";
    EXPECT_EQ(first(model, "u1.d"), 8 - 0.25F * (1 + 8));
    EXPECT_EQ(first(model, "u0.b"), 2 - 0.25F * (1 + 2)) << "a group's own decay is of all its parameters";
    EXPECT_EQ(first(model, "u0.c"), 4) << "in no group: not the optimizer's";
  });
}

// C3
TEST_P(Groups, C3_HaveBetasOfTheirOwn) {
  run_local_ranks(GetParam(), [](auto world) {
    ShardedWeights model(std::move(world), grouped_units());
    const auto optimizer =
        make_adamw(model.root(), {.weight_decay = 0},
                   {{.parameters = {"u0.a", "u0.b"}, .beta1 = 0.5, .beta2 = 0.75}, {.parameters = {"u0.c", "u1.d", "u1.e"}}});
    step(model, *optimizer, {.lr = 0});
    for (const StateShard& shard : optimizer->state()) {
      for (const fsdp::Piece& p : model.root().pieces()) {
        if (&model.root().storage(p) != shard.storage) continue;
        const std::string& name = model.root().parameter(p).full_name;
        const bool is_own = name == "u0.a" || name == "u0.b";
        const double beta = shard.kind == "exp_avg" ? (is_own ? 0.5 : 0.9) : (is_own ? 0.75 : 0.95);
        EXPECT_FLOAT_EQ(shard.data.as<float>()[p.offset], static_cast<float>(1 - beta)) << name;
      }
    }
    EXPECT_EQ(optimizer->group_options(optimizer->groups()[0]).at("beta1"), 0.5);
    EXPECT_EQ(optimizer->group_options(optimizer->groups()[1]).at("beta1"), 0.9);
  });
}

// C3: None, not zero. In original-parameter mode a parameter without gradient has no state and does not decay.
TEST_P(Groups, C3_AParameterWithoutGradientIsLeftAloneInOriginalParameterMode) {
  for (const bool original : {true, false}) {
    run_local_ranks(GetParam(), [&](auto world) {
      ShardedOptions options;
      options.fsdp.root = fsdp::RootOptions{.use_orig_params = original};
      ShardedWeights model(std::move(world), grouped_units(), options);
      const auto optimizer = make_sgd(model.root(), {.momentum = 0.5, .weight_decay = 1});
      model.weight(0, 2).has_grad = false;
      fill_grads(model, 1);
      model.pass();
      bool is_seen = false;
      for (const fsdp::Piece& p : model.root().pieces()) {
        if (model.root().parameter(p).full_name != "u0.c") continue;
        is_seen = true;
        EXPECT_EQ(static_cast<bool>(model.root().grad(p)), !original);
      }
      EXPECT_TRUE(is_seen || GetParam() > 1);
      optimizer->step({.lr = 0.125});
      model.root().zero_grad();
      EXPECT_EQ(first(model, "u0.c"), original ? 4 : 4 - 0.125F * 4);
      EXPECT_EQ(optimizer->steps_of("u0.c"), original ? 0 : 1);
      EXPECT_THAT(optimizer->parameter_steps().size(), original ? 1 : 0);
      // Its first gradient is its first step, and only of it.
      model.weight(0, 2).has_grad = true;
      for (int i : {0, 1}) model.weight(0, static_cast<std::size_t>(i)).has_grad = false;
      step(model, *optimizer, {.lr = 0.125});
      EXPECT_EQ(optimizer->steps_of("u0.c"), original ? 1 : 2);
      EXPECT_EQ(optimizer->steps_of("u0.a"), original ? 1 : 2);
      EXPECT_EQ(optimizer->steps_of("u1.d"), 2);
      EXPECT_TRUE(!original || first(model, "u0.c") == 4 - 0.125F * (1 + 4));
    });
  }
}

// A parameter that joins later has a bias correction of its own, also when steps were skipped before it came.
TEST_P(Groups, BiasCorrectionCountsAParametersOwnSteps) {
  run_local_ranks(GetParam(), [](auto world) {
    ShardedOptions options;
    options.fsdp.root = fsdp::RootOptions{.use_orig_params = true};
    ShardedWeights model(std::move(world), grouped_units(), options);
    GradScaler scaler(model.root(), {.init_scale = 1024});
    const auto optimizer = make_adamw(model.root(), {.eps = 1e-12, .weight_decay = 0});
    const auto scaled_step = [&](bool overflows) {
      const float scale = static_cast<float>(scaler.state().scale);
      fill_grads(model, scale);
      if (overflows) model.weight(1, 0).grad[0] = INFINITY;
      model.pass();
      scaler.unscale();
      optimizer->step({.lr = 1, .skip = scaler.found_inf(), .skipped_steps = scaler.skipped_steps()});
      scaler.update();
      model.root().zero_grad();
    };
    model.weight(0, 2).has_grad = false;
    scaled_step(false);
    scaled_step(true);
    scaled_step(true);
    scaled_step(false);
    EXPECT_FLOAT_EQ(first(model, "u0.a"), 1 - 2) << "gradients of 1: every taken step is lr";
    model.weight(0, 2).has_grad = true;
    scaled_step(false);
    EXPECT_FLOAT_EQ(first(model, "u0.c"), 4 - 1);
    EXPECT_FLOAT_EQ(first(model, "u0.a"), 1 - 3);
    scaled_step(true);
    scaled_step(false);
    EXPECT_FLOAT_EQ(first(model, "u0.c"), 4 - 2);
    EXPECT_FLOAT_EQ(first(model, "u0.a"), 1 - 4);
    scaler.take_skipped_steps_off(*optimizer);
    EXPECT_EQ(optimizer->num_steps(), 4);
    EXPECT_THAT(optimizer->parameter_steps(), ElementsAre(Pair("u0.c", 2)));
  });
}

// A unit of which no group has a parameter has no state, however the others' is allocated.
TEST_P(Groups, StateIsOfUnitsThatAreSteppedOnly) {
  enum class Way { step, step_in_backward, ahead, load };
  for (const Way way : {Way::step, Way::step_in_backward, Way::ahead, Way::load}) {
    run_local_ranks(GetParam(), [&](auto world) {
      ShardedWeights model(std::move(world), grouped_units());
      OptimStateDict of_all;
      {
        const auto all = make_adamw(model.root(), {});
        step(model, *all, {.lr = 0});
        of_all = full_optim_state_dict(*all, false);
      }
      const auto optimizer = make_adamw(model.root(), {}, {{.parameters = {"u1.d"}}});
      if (way == Way::step) step(model, *optimizer, {.lr = 0});
      if (way == Way::step_in_backward) {
        OptimizerInBackward in_backward(*optimizer);
        in_backward.begin_step(0);
        fill_grads(model, 1);
        model.pass();
      }
      if (way == Way::ahead) optimizer->allocate_state();
      if (way == Way::load) load_optim_state_dict(*optimizer, of_all);
      ASSERT_EQ(optimizer->state().size(), 2U);
      for (const StateShard& shard : optimizer->state()) EXPECT_EQ(shard.storage->name(), "u1");
      // "d" in 64 elements and 5 of "e", over the ranks, 2 kinds of 4 bytes.
      model.device_mesh().compute().synchronize();
      EXPECT_EQ(model.pool().stats().current_of(MemoryRole::optimizer), 2 * 4 * ((69 + GetParam() - 1) / GetParam()));
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, Groups, ::testing::Values(1, 2, 3));

TEST(ParamGroups, MistakesAreNamed) {
  run_local_ranks(1, [](auto world) {
    ShardedWeights model(std::move(world), grouped_units());
    const auto adamw = [&](std::vector<ParamGroup> groups) {
      return group_error([&] { static_cast<void>(make_adamw(model.root(), {}, std::move(groups))); });
    };
    EXPECT_EQ(adamw({{.parameters = {"u0.a"}}}), "");
    EXPECT_THAT(adamw({{}, {.parameters = {"u0.x"}}}), HasSubstr("parameter group 1 names u0.x, which is no parameter of the model"));
    EXPECT_THAT(adamw({{.parameters = {"u0.a"}}, {.parameters = {"u0.b", "u0.a"}}}), HasSubstr("parameter u0.a is in the groups 0 and 1"));
    EXPECT_THAT(adamw({{.lr_factor = -1}}), HasSubstr("lr_factor is -1"));
    EXPECT_THAT(adamw({{.weight_decay = NAN}}), HasSubstr("weight_decay is nan"));
    EXPECT_THAT(adamw({{.beta1 = 1}}), HasSubstr("beta1 is 1"));
    EXPECT_THAT(group_error([&] { static_cast<void>(make_sgd(model.root(), {}, {{.beta2 = 0.5}})); }), HasSubstr("sgd has betas"));
  });
}

}  // namespace
}  // namespace mica::optim
