// SPDX-License-Identifier: Apache-2.0
// What a backward does with the gradients that it gets and gives, and which it leaves out: frozen parameters.
#include <algorithm>

#include "mica/nn/activation.hpp"
#include "mica/nn/layer_norm.hpp"
#include "mica/nn/linear.hpp"
#include "mica/nn/sequential.hpp"

#include "model_run.hpp"

namespace mica::nn {
namespace {

using testing::floats;
using testing::gradients;
using testing::ModelRun;
using testing::NamedGradient;
using testing::Result;
using testing::Rig;
using testing::run_one;

TEST(Gradients, AnLvalueListOfGradientsIsLeftAsItIs) {
  Rig rig;
  Residual residual("r");
  residual.add<LayerNorm>("norm", 5);
  residual.add<Linear>("linear", 5, 5);
  const PlainParameters storage(residual, rig.context);
  const Tensor x = rig.normal({3, 5}, "x");
  const Tensors dys = {rig.normal({3, 5}, "dy")};
  const auto before = floats(rig, dys[0]);
  Record record;
  static_cast<void>(residual.forward(rig.context, {x}, &record));
  const Tensors dxs = residual.backward(rig.context, std::move(record), dys);
  EXPECT_EQ(floats(rig, dys[0]), before);

  Record again;
  static_cast<void>(residual.forward(rig.context, {x}, &again));
  Tensors handed_over = {rig.normal({3, 5}, "dy")};
  const void* memory = handed_over[0].view().data;
  const Tensors in_place = residual.backward(rig.context, std::move(again), std::move(handed_over));
  EXPECT_EQ(in_place[0].view().data, memory) << "a list that was handed over is accumulated in place";
  EXPECT_EQ(floats(rig, in_place[0]), floats(rig, dxs[0]));
}

TEST(Gradients, AGeluOverwritesOnlyWhatIsHandedOver) {
  Rig rig;
  Gelu gelu;
  const Tensor x = rig.normal({3, 5}, "x");
  Tensors dys = {rig.normal({3, 5}, "dy")};
  const auto before = floats(rig, dys[0]);
  Record first, second;
  static_cast<void>(gelu.forward(rig.context, {x}, &first));
  static_cast<void>(gelu.forward(rig.context, {x}, &second));
  const auto expected = floats(rig, gelu.backward(rig.context, std::move(first), dys)[0]);
  EXPECT_EQ(floats(rig, dys[0]), before);
  EXPECT_EQ(floats(rig, gelu.backward(rig.context, std::move(second), std::move(dys))[0]), expected);
}

TEST(Gradients, AResidualsFirstLayerAddsToTheSumWithoutATensorOfItsOwn) {
  for (const int layers : {1, 2}) {
    Rig rig;
    Residual residual("r");
    for (int i = 0; i < layers; ++i) residual.add<Linear>("linear" + std::to_string(i), 5, 5);
    const PlainParameters storage(residual, rig.context);
    residual.for_each_parameter([](const std::string&, Parameter& p) { p.requires_grad = false; });  // nothing is saved
    const Tensor x = rig.normal({3, 5}, "x");
    Record record;
    static_cast<void>(residual.forward(rig.context, {x}, &record));
    Tensors dys = {rig.normal({3, 5}, "dy")};
    rig.pool->reset_peak();
    const std::int64_t before = rig.activation_bytes();
    static_cast<void>(residual.backward(rig.context, std::move(record), std::move(dys)));
    // Of two layers the second one makes a dx, to which the first's is not added: that goes into dy. One layer alone
    // reads dy itself, so its dx cannot be added there at once.
    EXPECT_EQ(rig.pool->stats().peak_of(MemoryRole::activation) - before, 3 * 5 * 4) << layers;
  }
}

TEST(Gradients, InputsThatNeedNoneGetNone) {
  Rig rig;
  for (const bool needs_grad : {false, true}) {
    Linear linear(5, 3);
    LayerNorm norm(5);
    Residual residual("r");
    residual.add<Linear>("linear", 5, 5);
    for (Module* module : std::initializer_list<Module*>{&linear, &norm, &residual}) {
      const PlainParameters storage(*module, rig.context);
      const Tensor x = rig.normal({3, 5}, "x", needs_grad);
      Record record;
      Tensors ys = module->forward(rig.context, {x}, &record);
      EXPECT_TRUE(ys[0].needs_grad);
      rig.pool->reset_peak();
      const std::int64_t before = rig.activation_bytes();
      const Tensors dxs = module->backward(rig.context, std::move(record), ys);
      EXPECT_EQ(static_cast<bool>(dxs.at(0)), needs_grad) << module->type_name();
      if (!needs_grad && module == &linear) {
        EXPECT_EQ(rig.pool->stats().peak_of(MemoryRole::activation), before) << "no memory for a dx";
      }
    }
  }
}

TEST(Gradients, AbsentOnesRunNothingAndFreeTheRecord) {
  ModelRun run;
  const std::int64_t before = run.rig.activation_bytes();
  Record record;
  { const Tensors ys = run.forward(0, &record); }
  const Tensors dxs = run.model.backward(run.rig.context, std::move(record), {Tensor()});
  EXPECT_EQ(dxs.size(), 2U);
  EXPECT_FALSE(dxs[0] || dxs[1]);
  EXPECT_TRUE(gradients(run.rig, run.model).empty());
  EXPECT_EQ(run.rig.activation_bytes(), before);
}

/// Counts backwards.
struct CountingHooks final : ModuleHooks {
  int backwards = 0;
  void pre_forward(Context&, Module&, Tensors&, Record*) override {}
  void post_forward(Context&, Module&, Tensors&, Record*) override {}
  void pre_backward(Context&, Module&, Record&, Tensors&) override { ++backwards; }
  void post_backward(Context&, Module&, Record&, Tensors&) override {}
};

TEST(Frozen, ParametersGetNoGradientAndAFrozenPrefixNoBackward) {
  ModelRun plain, run;
  const Result expected = run_one(plain);
  auto first_block = std::make_shared<CountingHooks>(), second_block = std::make_shared<CountingHooks>();
  run.model.for_each_module([&](const std::string& name, Module& module) {
    if (name == "transformer.h.0") module.set_hooks(first_block);
    if (name == "transformer.h.1") module.set_hooks(second_block);
  });
  // Everything in front of the second block's MLP; its head weight is tied to the embedding's.
  run.model.for_each_parameter([&](const std::string& name, Parameter& p) {
    p.requires_grad = name.starts_with("transformer.h.1.mlp") || name.starts_with("transformer.ln_f");
  });
  const Result result = run_one(run);
  EXPECT_EQ(result.loss, expected.loss);
  EXPECT_EQ(first_block->backwards, 0);
  EXPECT_EQ(second_block->backwards, 1);
  ASSERT_EQ(result.gradients.size(), 6U);
  for (const NamedGradient& gradient : result.gradients) {
    const auto same = std::ranges::find(expected.gradients, gradient.name, &NamedGradient::name);
    ASSERT_NE(same, expected.gradients.end());
    EXPECT_EQ(gradient.values, same->values) << gradient.name;
  }
}

TEST(Frozen, EachParameterAloneTrainsAsWithTheOthers) {
  ModelRun plain;
  const Result expected = run_one(plain);
  for (const NamedGradient& gradient : expected.gradients) {
    ModelRun run;
    run.model.for_each_parameter([&](const std::string& name, Parameter& p) { p.requires_grad = name == gradient.name; });
    const Result result = run_one(run);
    ASSERT_EQ(result.gradients.size(), 1U) << gradient.name;
    if (gradient.name == "transformer.wte.weight") continue;
    EXPECT_EQ(result.gradients[0], gradient);
  }
}

TEST(Frozen, EverythingFrozenStillGivesTheLoss) {
  for (const bool loss_in_backward : {false, true}) {
    ModelRun plain, run;
    run.rig.context.loss_in_backward = loss_in_backward;
    run.model.for_each_parameter([](const std::string&, Parameter& p) { p.requires_grad = false; });
    for (const auto* checkpointed : {"", "gpt2_block", "gpt2"}) {
      run.set_checkpointed(checkpointed);
      Record record;
      EXPECT_FALSE(run.forward(0, &record)[0].needs_grad) << checkpointed;
    }
    const Result result = run_one(run);
    EXPECT_EQ(result.loss, run_one(plain).loss);
    EXPECT_TRUE(result.gradients.empty());
  }
}

TEST(Frozen, GradientsOfAParameterThawedBetweenTwoBackwardsStartAnew) {
  Rig rig;
  Linear linear(3, 2);
  LayerNorm norm(3);
  for (Module* module : std::initializer_list<Module*>{&linear, &norm}) {
    const PlainParameters storage(*module, rig.context);
    Parameter &weight = *module->own_parameters()[0], &bias = *module->own_parameters()[1];
    const auto step = [&] {
      Record record;
      const Tensors ys = module->forward(rig.context, {rig.normal({4, 3}, "x")}, &record);
      module->backward(rig.context, std::move(record), {rig.normal(ys[0].shape(), "dy")});
    };
    step();
    const auto weight_once = floats(rig, weight.grad), bias_once = floats(rig, bias.grad);
    weight.grad_written = bias.grad_written = false;
    bias.requires_grad = false;
    step();
    bias.requires_grad = true;
    step();
    const auto expect_times = [&](Parameter& parameter, const std::vector<float>& once, float times) {
      const auto sum = floats(rig, parameter.grad);
      for (std::size_t i = 0; i < once.size(); ++i) {
        EXPECT_NEAR(sum[i], times * once[i], 1e-5F) << module->type_name() << "." << parameter.name;
      }
    };
    expect_times(weight, weight_once, 2);
    expect_times(bias, bias_once, 1);
    step();
    weight.grad_written = false;
    step();
    expect_times(weight, weight_once, 1);
    expect_times(bias, bias_once, 3);
    weight.requires_grad = false;
    step();
    expect_times(weight, weight_once, 1);
    expect_times(bias, bias_once, 4);
  }
}

}  // namespace
}  // namespace mica::nn
