// SPDX-License-Identifier: Apache-2.0
// Layers that share a kernel with a neighbour ([Note: fused neighbours]): that they do, and that nothing else changes.
#include <algorithm>

#include "mica/nn/activation.hpp"
#include "mica/nn/layer_norm.hpp"
#include "mica/nn/linear.hpp"
#include "mica/nn/models/gpt2.hpp"
#include "mica/nn/models/llama.hpp"
#include "mica/nn/models/mlp.hpp"

#include "nn_testing.hpp"
#include "support/naming_stream.hpp"

namespace mica::nn {
namespace {
using mica::testing::NamingStream;
using testing::floats;
using testing::gradients;
using testing::NamedGradient;
using testing::Rig;

/// Hooks that do nothing: the module is a unit of its own.
struct NoHooks final : ModuleHooks {
  void pre_forward(Context&, Module&, Tensors&, Record*) override {}
  void post_forward(Context&, Module&, Tensors&, Record*) override {}
  void pre_backward(Context&, Module&, Record&, Tensors&) override {}
  void post_backward(Context&, Module&, Record&, Tensors&) override {}
};

/// Loss and gradients of a language model in one forward and backward, and what they enqueued.
struct Pass {
  std::vector<float> loss;
  std::vector<NamedGradient> gradients;
  std::shared_ptr<NamingStream> stream;
};

enum class When { always, in_backward_only };

struct How {
  When when = When::always;
  Recompute recompute = Recompute::none;
  bool with_record = true;
};

Pass run(Module& model, const std::vector<std::string>& units, const How& how = {}) {
  auto stream = std::make_shared<NamingStream>(make_cpu_stream("compute", StreamMode::inlined));
  Rig rig;
  Context context{.compute = *stream, .pool = *rig.pool, .kernels = *rig.kernels};
  context.recompute = how.recompute;
  context.seed = 5, context.step = 1, context.sequences = {0, 1};
  const PlainParameters storage(model, context);
  const auto set_hooks = [&](bool on) {
    model.for_each_module([&](const std::string& name, Module& module) {
      const bool is_unit = std::ranges::any_of(units, [&](const std::string& unit) { return name.ends_with(unit); });
      module.set_hooks(on && is_unit ? std::make_shared<NoHooks>() : nullptr);
    });
  };
  set_hooks(how.when == When::always);
  const Tensors xs{rig.tokens({2, 5}, 13), rig.tokens({2, 5}, 13, "targets")};
  stream->names.clear();
  Record record;
  Pass pass;
  {
    const Tensors ys = model.forward(context, xs, how.with_record ? &record : nullptr);
    stream->synchronize();
    pass.loss = floats(rig, ys[0]);
  }
  set_hooks(true);
  if (how.with_record) {
    Tensor dloss = context.make({1}, DType::f32);
    context.kernels.fill(context.compute, dloss, 1);
    model.backward(context, std::move(record), {dloss});
    stream->synchronize();
    pass.gradients = gradients(rig, model);
  }
  set_hooks(false);
  pass.stream = std::move(stream);
  return pass;
}

Gpt2Config small_gpt2() { return {.layers = 2, .heads = 3, .width = 9, .context = 8, .vocab_size = 13}; }

TEST(Fused, ABlockOfGpt2SharesKernels) {
  Gpt2 model(small_gpt2());
  const Pass pass = run(model, {});
  EXPECT_EQ(pass.stream->count("linear_gelu"), 2);
  EXPECT_EQ(pass.stream->count("linear_gelu_backward_input"), 2);
  EXPECT_EQ(pass.stream->count("gelu_backward"), 0);
  EXPECT_EQ(pass.stream->count("gelu"), 0) << "the second product's input is kept";
  EXPECT_EQ(pass.stream->count("add_layer_norm"), 2);
  const Pass apart = run(model, {"ln_2"});
  EXPECT_EQ(apart.stream->count("add") - pass.stream->count("add"), 2) << "the sums inside the blocks";
  EXPECT_EQ(pass.stream->count("layer_norm"), 3) << "ln_1 of both and ln_f";
  EXPECT_EQ(pass.stream->count("layer_norm_backward"), 5) << "they add to the residual's gradient themselves";
  const Pass eval = run(model, {}, {.with_record = false});
  EXPECT_EQ(eval.loss, pass.loss);
  EXPECT_EQ(eval.stream->count("linear_gelu"), 2);
  EXPECT_EQ(eval.stream->count("gelu"), 0);
}

TEST(Fused, ABlockOfLlamaAndAnMlpShareKernels) {
  Llama llama({.layers = 2, .heads = 2, .kv_heads = 1, .width = 8, .intermediate_size = 9, .context = 8, .vocab_size = 13});
  const Pass pass = run(llama, {});
  EXPECT_EQ(pass.stream->count("add_rms_norm"), 2);
  EXPECT_EQ(pass.stream->count("rms_norm"), 3);
  Mlp mlp({.layers = 3, .width = 5, .intermediate_size = 7, .vocab_size = 13});
  const Pass of_mlp = run(mlp, {});
  EXPECT_EQ(of_mlp.stream->count("linear_gelu"), 3);
  EXPECT_EQ(of_mlp.stream->count("linear_gelu_backward_input"), 3);
}

/// What a pass makes again ([Note: recomputed outputs]): counted as kernels beyond those of its forwards.
TEST(Fused, CheapOutputsAreMadeAgainOnceAndOnlyIfAsked) {
  Gpt2 gpt2(small_gpt2());
  Llama llama({.layers = 2, .heads = 2, .kv_heads = 1, .width = 8, .intermediate_size = 9, .context = 8, .vocab_size = 13});
  const auto count = [](const Pass& pass, const char* name) { return pass.stream->count(name); };
  const Pass of_gpt2 = run(gpt2, {}, {.recompute = Recompute::cheap});
  EXPECT_EQ(count(of_gpt2, "gelu"), 2);
  EXPECT_EQ(count(of_gpt2, "layer_norm"), 3 + 4) << "ln_1 and ln_2 of both blocks";
  EXPECT_EQ(count(of_gpt2, "linear_gelu") + count(of_gpt2, "linear_gelu_backward_input"), 2 + 2);
  const Pass of_llama = run(llama, {}, {.recompute = Recompute::cheap});
  EXPECT_EQ(count(of_llama, "swiglu"), 2 + 2);
  EXPECT_EQ(count(of_llama, "rms_norm"), 3 + 4);
  EXPECT_EQ(count(run(llama, {}), "swiglu"), 2);
  // A checkpointed block makes everything twice, and nothing a third time.
  for (LanguageModel* model : std::initializer_list<LanguageModel*>{&gpt2, &llama}) {
    model->for_each_module([](const std::string&, Module& module) { module.set_checkpointed(module.type_name().ends_with("_block")); });
    const Pass none = run(*model, {}), cheap = run(*model, {}, {.recompute = Recompute::cheap});
    EXPECT_EQ(cheap.stream->names, none.stream->names);
    EXPECT_EQ(count(cheap, "linear_gelu"), model == &gpt2 ? 4 : 0);
    EXPECT_EQ(count(cheap, "swiglu"), model == &llama ? 4 : 0);
    EXPECT_EQ(count(cheap, "gelu"), 0);
    EXPECT_EQ(count(cheap, "layer_norm") + count(cheap, "rms_norm"), 3 + 2) << "the first one of each block again";
  }
}

TEST(Fused, AnEmbeddingAddsThePositionsOfAllSequencesAtOnce) {
  for (const std::string frozen : {"", "wte.weight", "wpe.weight", "e.weight"}) {  // none, one, both
    Gpt2 model(small_gpt2());
    model.for_each_parameter(
        [&](const std::string& name, Parameter& parameter) { parameter.requires_grad = frozen.empty() || !name.ends_with(frozen); });
    const Pass pass = run(model, {});
    EXPECT_EQ(pass.stream->count("embedding"), 1);
    for (const std::string unit : {"wte", "wpe"}) {
      const Pass apart = run(model, {unit});
      EXPECT_EQ(apart.stream->count("add") - pass.stream->count("add"), 2) << "one for each sequence";
      EXPECT_EQ(apart.loss, pass.loss) << unit << " " << frozen;
      EXPECT_EQ(apart.gradients, pass.gradients) << unit << " " << frozen;
    }
    EXPECT_EQ(run(model, {}, {.with_record = false}).loss, pass.loss);
  }
}

/// With units around some layers, in the whole pass or in the backward alone, and outputs kept or made again.
TEST(Fused, AUnitsLayersRunByThemselvesAndGiveTheSameBits) {
  Gpt2 gpt2(small_gpt2());
  Llama llama({.layers = 2, .heads = 2, .kv_heads = 1, .width = 8, .intermediate_size = 9, .context = 8, .vocab_size = 13});
  Mlp mlp({.layers = 2, .width = 5, .intermediate_size = 7, .vocab_size = 13});
  for (LanguageModel* model : std::initializer_list<LanguageModel*>{&gpt2, &llama, &mlp}) {
    const Pass expected = run(*model, {});
    for (const std::string unit : {"c_fc", "act", "mlp.c_proj", "ln_2", "post_attention_layernorm", "up", "down", ""}) {
      for (const Recompute recompute : {Recompute::none, Recompute::cheap}) {
        for (const When when : {When::always, When::in_backward_only}) {
          const Pass pass = run(*model, {unit}, {.when = when, .recompute = recompute});
          EXPECT_EQ(pass.loss, expected.loss) << unit;
          EXPECT_EQ(pass.gradients, expected.gradients) << unit;
        }
      }
    }
    EXPECT_EQ(run(*model, {}, {.recompute = Recompute::cheap}).gradients, expected.gradients);
  }
  const Pass apart = run(gpt2, {""});
  for (const std::string name : {"linear_gelu", "linear_gelu_backward_input", "add_layer_norm"}) {
    EXPECT_EQ(apart.stream->count(name), 0) << name;
  }
  EXPECT_EQ(run(gpt2, {"c_fc"}).stream->count("linear_gelu"), 0);
  EXPECT_EQ(run(gpt2, {"c_fc"}).stream->count("linear_gelu_backward_input"), 2);
  EXPECT_EQ(run(gpt2, {"act"}).stream->count("linear_gelu_backward_input"), 0);
  EXPECT_EQ(run(gpt2, {"mlp.c_proj"}).stream->count("linear_gelu_backward_input"), 0);
  EXPECT_EQ(run(gpt2, {"ln_2"}).stream->count("add_layer_norm"), 0);
}

TEST(Fused, AKeptRecordServesSeveralBackwards) {
  Rig rig;
  rig.context.recompute = Recompute::cheap;
  Sequential chain;  // the GELU's input is dropped too, and made again for the product behind it
  chain.add<LayerNorm>("norm", 5);
  chain.add<Gelu>("act");
  chain.add<Linear>("linear", 5, 3);
  chain.add<Gelu>("act2");
  chain.add<Linear>("last", 3, 4);
  const PlainParameters storage(chain, rig.context);
  Record record;
  static_cast<void>(chain.forward(rig.context, {rig.normal({4, 5}, "x")}, &record));
  record.keep();
  const std::int64_t saved = rig.activation_bytes();
  std::vector<std::vector<float>> dxs;
  for (int time = 0; time < 3; ++time) {
    if (time == 2) record.keep(false);  // NOLINT(bugprone-use-after-move): a kept Record serves again
    const Tensors dx = chain.backward(rig.context, std::move(record), {rig.normal({4, 4}, "dy")});
    dxs.push_back(floats(rig, dx[0]));
    EXPECT_TRUE(time == 2 || rig.activation_bytes() - dx[0].view().bytes() == saved) << "what was made again is dropped";
  }
  EXPECT_EQ(dxs[0], dxs[1]);
  EXPECT_EQ(dxs[0], dxs[2]);
}

TEST(Fused, FrozenLayersKeepNoInputOfTheGelu) {
  Rig rig;
  Sequential chain;
  Linear& up = chain.add<Linear>("up", 5, 8);
  chain.add<Gelu>("act");
  chain.add<Linear>("down", 8, 5);
  const PlainParameters storage(chain, rig.context);
  for (const auto& parameter : up.own_parameters()) parameter->requires_grad = false;
  const Tensor x = rig.normal({4, 5}, "x", false);
  const std::int64_t before = rig.activation_bytes();
  Record record;
  const Tensors ys = chain.forward(rig.context, {x}, &record);
  EXPECT_TRUE(ys[0].needs_grad);
  EXPECT_EQ(rig.activation_bytes() - before, 4 * (8 + 5) * 4) << "the GELU's output for down's gradient, and ys";
  const Tensors dxs = chain.backward(rig.context, std::move(record), {rig.normal({4, 5}, "dy")});
  EXPECT_FALSE(dxs[0]);
  EXPECT_EQ(gradients(rig, chain).size(), 2U);
}

}  // namespace
}  // namespace mica::nn
