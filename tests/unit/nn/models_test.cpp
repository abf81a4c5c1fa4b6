// SPDX-License-Identifier: Apache-2.0
// Names, shapes, initial values and refusals of the models.
#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "mica/nn/activation.hpp"
#include "mica/nn/gradcheck.hpp"
#include "mica/nn/linear.hpp"
#include "mica/nn/models/gpt2.hpp"
#include "mica/nn/models/llama.hpp"
#include "mica/nn/models/mlp.hpp"

#include "nn_testing.hpp"

namespace mica::nn {
namespace {
using testing::floats;
using testing::Rig;

std::map<std::string, Parameter*> parameters_of(Module& module) {
  std::map<std::string, Parameter*> all;
  module.for_each_parameter([&](const std::string& name, Parameter& p) { EXPECT_TRUE(all.emplace(name, &p).second) << name; });
  return all;
}

TEST(Gpt2Model, HasHuggingFacesNamesShapesAndCount) {
  Gpt2 model({.layers = 12, .heads = 12, .width = 768, .context = 1024, .vocab_size = 50257});
  EXPECT_EQ(model.num_parameters(), 124439808);  // GPT-2 small
  const auto all = parameters_of(model);
  EXPECT_EQ(all.size(), 2 + 12 * 12 + 2U);
  EXPECT_EQ(all.at("transformer.wte.weight")->shape, (Shape{50257, 768}));
  EXPECT_EQ(all.at("transformer.wpe.weight")->shape, (Shape{1024, 768}));
  for (const auto* block : {"transformer.h.0.", "transformer.h.11."}) {
    const auto shape = [&](const char* name) { return all.at(std::string(block) + name)->shape; };
    EXPECT_EQ(shape("ln_1.weight"), (Shape{768}));
    EXPECT_EQ(shape("ln_1.bias"), (Shape{768}));
    EXPECT_EQ(shape("attn.c_attn.weight"), (Shape{2304, 768}));
    EXPECT_EQ(shape("attn.c_attn.bias"), (Shape{2304}));
    EXPECT_EQ(shape("attn.c_proj.weight"), (Shape{768, 768}));
    EXPECT_EQ(shape("attn.c_proj.bias"), (Shape{768}));
    EXPECT_EQ(shape("ln_2.weight"), (Shape{768}));
    EXPECT_EQ(shape("ln_2.bias"), (Shape{768}));
    EXPECT_EQ(shape("mlp.c_fc.weight"), (Shape{3072, 768}));
    EXPECT_EQ(shape("mlp.c_fc.bias"), (Shape{3072}));
    EXPECT_EQ(shape("mlp.c_proj.weight"), (Shape{768, 3072}));
    EXPECT_EQ(shape("mlp.c_proj.bias"), (Shape{768}));
  }
  EXPECT_EQ(all.at("transformer.ln_f.weight")->shape, (Shape{768}));
  for (const auto& [name, p] : all) EXPECT_EQ(p->weight_decay, p->shape.num_dims() == 2) << name;
}

TEST(Gpt2Model, AnUntiedHeadHasItsOwnWeight) {
  Gpt2 tied({.layers = 1, .heads = 1, .width = 4, .context = 2, .vocab_size = 7});
  Gpt2 untied({.layers = 1, .heads = 1, .width = 4, .context = 2, .vocab_size = 7, .tie_embeddings = false});
  EXPECT_EQ(untied.num_parameters() - tied.num_parameters(), 28);
  EXPECT_EQ(parameters_of(untied).at("lm_head.weight")->shape, (Shape{7, 4}));
  EXPECT_FALSE(parameters_of(tied).contains("lm_head.weight"));
  std::vector<Parameter*> shared;
  tied.for_each_module(
      [&](const std::string&, Module& m) { shared.insert(shared.end(), m.shared_parameters().begin(), m.shared_parameters().end()); });
  EXPECT_EQ(shared, std::vector<Parameter*>{parameters_of(tied).at("transformer.wte.weight")});
}

TEST(Gpt2Model, BlocksAreWhatWrapPoliciesLookFor) {
  Gpt2 model({.layers = 3, .heads = 1, .width = 4, .context = 2, .vocab_size = 7});
  std::set<std::string> blocks;
  model.for_each_module([&](const std::string& name, Module& m) {
    if (m.type_name() == "gpt2_block") blocks.insert(name);
    EXPECT_TRUE(m.has_forward()) << name;
  });
  EXPECT_EQ(blocks, (std::set<std::string>{"transformer.h.0", "transformer.h.1", "transformer.h.2"}));
}

double deviation(const std::vector<float>& values) {
  double sum = 0;
  for (const float v : values) sum += static_cast<double>(v) * static_cast<double>(v);
  return std::sqrt(sum / static_cast<double>(values.size()));
}

TEST(Gpt2Model, StartsAsGpt2Does) {
  Rig rig;
  Gpt2 model({.layers = 2, .heads = 2, .width = 64, .context = 32, .vocab_size = 101});
  const PlainParameters storage(model, rig.context);
  for (const auto& [name, p] : parameters_of(model)) {
    const auto values = floats(rig, p->data);
    if (p->shape.num_dims() == 2) {
      const double expected = name.ends_with("c_proj.weight") ? 0.02 / 2 : 0.02;  // sqrt(2 * layers) = 2
      // The deviation of n normals is known to 1 / sqrt(2n); 5 times that is chance 1 in a million.
      EXPECT_NEAR(deviation(values), expected, 5 * expected / std::sqrt(2.0 * static_cast<double>(values.size()))) << name;
    } else {
      const float expected = name.find(".ln_") != std::string::npos && name.ends_with("weight") ? 1.0F : 0.0F;
      EXPECT_EQ(values, std::vector<float>(values.size(), expected)) << name;
    }
  }
}

TEST(Initialisation, AnyPieceIsTheSamePartOfTheWhole) {
  Rig rig;
  Linear linear(7, 5);
  const Parameter& weight = *linear.own_parameters()[0];
  const auto piece = [&](std::int64_t begin, std::int64_t count) {
    const Tensor out = rig.context.make({count}, DType::f32);
    fill_initial(*rig.kernels, *rig.stream, weight, "layer.weight", 3, begin, out);
    return floats(rig, out);
  };
  const auto whole = piece(0, 35);
  for (std::int64_t begin = 0; begin < 35; ++begin) {
    for (const std::int64_t count : {std::int64_t{1}, 35 - begin}) {
      EXPECT_EQ(piece(begin, count), std::vector<float>(whole.begin() + begin, whole.begin() + begin + count)) << begin;
    }
  }
}

TEST(Gpt2Model, IdsAloneGiveLogitsAndTheLossFollowsFromThem) {
  Rig rig;
  Gpt2 model({.layers = 1, .heads = 2, .width = 6, .context = 8, .vocab_size = 11});
  const PlainParameters storage(model, rig.context);
  const Tensor ids = rig.tokens({2, 5}, 11), targets = rig.tokens({2, 5}, 11, "targets");
  const Tensors logits = model.forward(rig.context, {ids}, nullptr);
  ASSERT_EQ(logits[0].shape(), (Shape{10, 11}));
  EXPECT_EQ(logits[0].dtype(), DType::f32);
  const auto values = floats(rig, logits[0]);
  double loss = 0;
  for (std::size_t row = 0; row < 10; ++row) {
    double sum = 0;
    for (std::size_t v = 0; v < 11; ++v) sum += std::exp(static_cast<double>(values[11 * row + v]));
    const auto target = static_cast<std::size_t>(targets.view().as<std::int32_t>()[row]);
    loss += (std::log(sum) - static_cast<double>(values[11 * row + target])) / 10;
  }
  const Tensors ys = model.forward(rig.context, {ids, targets}, nullptr);
  EXPECT_NEAR(static_cast<double>(floats(rig, ys[0])[0]), loss, 1e-6);
}

TEST(Gpt2Model, IsCausal) {
  Rig rig;
  Gpt2 model({.layers = 2, .heads = 1, .width = 4, .context = 6, .vocab_size = 11});
  const PlainParameters storage(model, rig.context);
  const Tensor ids = rig.tokens({1, 6}, 11);
  const auto before = floats(rig, model.forward(rig.context, {ids}, nullptr)[0]);
  std::int32_t& last_but_one = ids.view().as<std::int32_t>()[4];
  last_but_one = (last_but_one + 1) % 11;
  const auto after = floats(rig, model.forward(rig.context, {ids}, nullptr)[0]);
  EXPECT_TRUE(std::equal(before.begin(), before.begin() + 44, after.begin()));
  EXPECT_FALSE(std::equal(before.begin() + 44, before.end(), after.begin() + 44));
}

std::string config_error(const std::function<void()>& call) {
  try {
    call();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no ConfigError";
}

TEST(ModelErrors, NameTheKeyAndTheValue) {
  const auto gpt2 = [](Gpt2Config config) { return config_error([&] { Gpt2 model(config); }); };
  EXPECT_NE(gpt2({.heads = 5, .width = 12}).find("model.width 12 is not divisible by model.heads 5"), std::string::npos);
  EXPECT_NE(gpt2({.heads = 0}).find("model.heads is 0"), std::string::npos);
  EXPECT_NE(gpt2({.width = -4}).find("model.width is -4"), std::string::npos);
  EXPECT_NE(gpt2({.context = 0}).find("model.context is 0"), std::string::npos);
  EXPECT_NE(gpt2({.vocab_size = 0}).find("model.vocab_size is 0"), std::string::npos);
  EXPECT_NE(gpt2({.layers = -1}).find("model.layers is -1"), std::string::npos);
  EXPECT_NE(gpt2({.dropout = 1.0}).find("model.dropout is 1"), std::string::npos);
  EXPECT_NE(config_error([] { Mlp model({.intermediate_size = 0}); }).find("model.intermediate_size is 0"), std::string::npos);
}

TEST(ModelErrors, ASequenceLongerThanTheContextIsRefused) {
  Rig rig;
  Gpt2 model({.layers = 1, .heads = 1, .width = 4, .context = 5, .vocab_size = 11});
  const PlainParameters storage(model, rig.context);
  const auto forward = [&](std::int64_t seq_len) {
    return config_error([&] { static_cast<void>(model.forward(rig.context, {rig.tokens({1, seq_len}, 11)}, nullptr)); });
  };
  EXPECT_EQ(forward(5), "no ConfigError");
  EXPECT_NE(forward(6).find("a sequence of 6 tokens does not fit the model's context of 5"), std::string::npos);
}

TEST(LlamaModels, HaveHuggingFacesNamesShapesAndCount) {
  // Llama 3.2 1B: 1,235,814,400 parameters.
  Llama model(
      {.layers = 16, .heads = 32, .kv_heads = 8, .width = 2048, .intermediate_size = 8192, .vocab_size = 128256, .tie_embeddings = true});
  EXPECT_EQ(model.num_parameters(), 1235814400);
  const auto all = parameters_of(model);
  EXPECT_EQ(all.size(), 1 + 16 * 9 + 1U);
  EXPECT_EQ(all.at("model.embed_tokens.weight")->shape, (Shape{128256, 2048}));
  for (const auto* block : {"model.layers.0.", "model.layers.15."}) {
    const auto shape = [&](const char* name) { return all.at(std::string(block) + name)->shape; };
    EXPECT_EQ(shape("input_layernorm.weight"), (Shape{2048}));
    EXPECT_EQ(shape("self_attn.q_proj.weight"), (Shape{2048, 2048}));
    EXPECT_EQ(shape("self_attn.k_proj.weight"), (Shape{512, 2048}));
    EXPECT_EQ(shape("self_attn.v_proj.weight"), (Shape{512, 2048}));
    EXPECT_EQ(shape("self_attn.o_proj.weight"), (Shape{2048, 2048}));
    EXPECT_EQ(shape("post_attention_layernorm.weight"), (Shape{2048}));
    EXPECT_EQ(shape("mlp.gate_proj.weight"), (Shape{8192, 2048}));
    EXPECT_EQ(shape("mlp.up_proj.weight"), (Shape{8192, 2048}));
    EXPECT_EQ(shape("mlp.down_proj.weight"), (Shape{2048, 8192}));
  }
  EXPECT_EQ(all.at("model.norm.weight")->shape, (Shape{2048}));
  for (const auto& [name, p] : all) EXPECT_EQ(p->weight_decay, p->shape.num_dims() == 2) << name;

  Llama untied({.layers = 1, .heads = 3, .kv_heads = 1, .head_dim = 4, .width = 5, .intermediate_size = 6, .vocab_size = 7});
  EXPECT_EQ(parameters_of(untied).at("lm_head.weight")->shape, (Shape{7, 5}));
  EXPECT_EQ(parameters_of(untied).at("model.layers.0.self_attn.o_proj.weight")->shape, (Shape{5, 12}));
  std::set<std::string> blocks;
  model.for_each_module([&](const std::string& name, Module& m) {
    if (m.type_name() == "llama_block") blocks.insert(name);
    EXPECT_TRUE(m.has_forward()) << name;
  });
  EXPECT_EQ(blocks.size(), 16U);
  EXPECT_TRUE(blocks.contains("model.layers.15"));
}

TEST(LlamaModels, StartAsHuggingFacesDo) {
  Rig rig;
  Llama model({.layers = 2, .heads = 4, .kv_heads = 2, .width = 64, .intermediate_size = 96, .vocab_size = 101});
  const PlainParameters storage(model, rig.context);
  for (const auto& [name, p] : parameters_of(model)) {
    const auto values = floats(rig, p->data);
    if (p->shape.num_dims() == 2) {
      EXPECT_NEAR(deviation(values), 0.02, 5 * 0.02 / std::sqrt(2.0 * static_cast<double>(values.size()))) << name;
    } else {
      EXPECT_EQ(values, std::vector<float>(values.size(), 1.0F)) << name;
    }
  }
}

TEST(LlamaModels, AreCausalAndSeeDistancesOnly) {
  Rig rig;
  Llama model({.layers = 1, .heads = 2, .kv_heads = 1, .width = 8, .intermediate_size = 6, .context = 9, .vocab_size = 11});
  const PlainParameters storage(model, rig.context);
  model.for_each_parameter([&](const std::string&, Parameter& p) {  // large enough to tell positions apart
    if (p.shape.num_dims() == 2) rig.kernels->scale(*rig.stream, p.data, 30, p.data, Write::overwrite);
  });
  const auto logits_of = [&](const std::vector<std::int32_t>& tokens) {
    const Tensor ids = rig.tokens({1, static_cast<std::int64_t>(tokens.size())}, 11);
    std::ranges::copy(tokens, ids.view().as<std::int32_t>());
    return floats(rig, model.forward(rig.context, {ids}, nullptr)[0]);
  };
  const auto base = logits_of({3, 1, 4, 1, 5}), changed = logits_of({3, 1, 4, 1, 6}), swapped = logits_of({1, 3, 4, 1, 5});
  EXPECT_TRUE(std::equal(base.begin(), base.begin() + 44, changed.begin()));
  EXPECT_FALSE(std::equal(base.begin() + 44, base.end(), changed.begin() + 44));
  float difference = 0;
  for (std::size_t i = 44; i < 55; ++i) difference = std::max(difference, std::abs(base[i] - swapped[i]));
  EXPECT_GT(difference, 1e-3F) << "the order of earlier tokens counts";
  // One token over and over: wherever it stands, what it sees is the same.
  const auto constant = logits_of({7, 7, 7, 7});
  for (std::size_t i = 11; i < constant.size(); ++i) EXPECT_NEAR(constant[i], constant[i % 11], 1e-3F);
}

TEST(ModelErrors, OfALlamaNameTheKeyAndTheValue) {
  const auto llama = [](LlamaConfig config) { return config_error([&] { Llama model(config); }); };
  EXPECT_NE(llama({.heads = 5, .width = 12}).find("model.width 12 is not divisible by model.heads 5"), std::string::npos);
  EXPECT_NE(llama({.heads = 4, .kv_heads = 3, .width = 8}).find("model.heads 4 is not divisible by model.kv_heads 3"), std::string::npos);
  EXPECT_NE(llama({.heads = 4, .kv_heads = -1, .width = 8}).find("model.kv_heads -1"), std::string::npos);
  EXPECT_NE(llama({.heads = 4, .width = 12}).find("a head has 3 columns, expected an even number"), std::string::npos);
  EXPECT_NE(llama({.heads = 4, .head_dim = 5, .width = 8}).find("a head has 5 columns"), std::string::npos);
  EXPECT_NE(llama({.heads = 4, .head_dim = -2, .width = 8}).find("model.head_dim, which is -2"), std::string::npos);
  EXPECT_NE(llama({.heads = 0}).find("model.heads is 0"), std::string::npos);
  EXPECT_NE(llama({.width = 0}).find("model.width is 0"), std::string::npos);
  EXPECT_NE(llama({.intermediate_size = 0}).find("model.intermediate_size is 0"), std::string::npos);
  EXPECT_NE(llama({.context = 0}).find("model.context is 0"), std::string::npos);
  EXPECT_NE(llama({.vocab_size = 0}).find("model.vocab_size is 0"), std::string::npos);
  EXPECT_NE(llama({.layers = -1}).find("model.layers is -1"), std::string::npos);
  EXPECT_NE(llama({.rms_eps = -1}).find("model.rms_eps is -1"), std::string::npos);
  EXPECT_NE(llama({.rotary = {.theta = 0}}).find("model.rope_theta is 0"), std::string::npos);
  const auto scaled = [&](RotaryOptions rotary) {
    rotary.scaling = RotaryOptions::Scaling::llama3;
    return llama({.rotary = rotary});
  };
  EXPECT_NE(scaled({.factor = 0.5}).find("model.rope_factor is 0.5"), std::string::npos);
  EXPECT_NE(scaled({.low_freq_factor = 0}).find("model.rope_low_freq_factor is 0"), std::string::npos);
  EXPECT_NE(scaled({.low_freq_factor = 4}).find("model.rope_high_freq_factor is 4, expected more than"), std::string::npos);
  EXPECT_NE(scaled({.original_context = 0}).find("model.rope_original_context is 0"), std::string::npos);
  Rig rig;
  Llama model({.layers = 1, .heads = 1, .width = 4, .intermediate_size = 3, .context = 5, .vocab_size = 11});
  const PlainParameters storage(model, rig.context);
  EXPECT_NE(config_error([&] {
              static_cast<void>(model.forward(rig.context, {rig.tokens({1, 6}, 11)}, nullptr));
            }).find("a sequence of 6 tokens does not fit the model's context of 5"),
            std::string::npos);
}

/// A user's own model, no backward written.
class OwnLanguageModel final : public LanguageModel {
 public:
  OwnLanguageModel(std::int64_t vocab, std::int64_t width) : LanguageModel("own_language_model") {
    add_body<Embedding>("embed", vocab, width);
    for (int i = 0; i < 4; ++i) {
      auto& block = add_body<Residual>("blocks." + std::to_string(i), "own_block");
      block.add<LayerNorm>("norm", width);
      block.add<Linear>("up", width, 4 * width);
      block.add<Gelu>("act");
      block.add<Linear>("down", 4 * width, width);
    }
    set_head("head", vocab, width);
  }
};

TEST(OwnModel, OfBuildingBlocksTrains) {
  Rig rig;
  OwnLanguageModel model(11, 6);
  EXPECT_TRUE(parameters_of(model).contains("blocks.3.up.weight"));
  const Tensors batch = {rig.tokens({2, 9}, 11), rig.tokens({2, 9}, 11, "targets")};
  const GradcheckReport report = gradcheck(model, rig.context, batch, {.max_elements = 8});
  EXPECT_LT(report.worst_error, 2e-3) << report.worst_element;

  PlainParameters storage(model, rig.context);
  std::vector<float> losses;
  for (int step = 0; step < 60; ++step) {
    Record record;
    const Tensors loss = model.forward(rig.context, batch, &record);
    model.backward(rig.context, std::move(record), {rig.scalar(1)});
    losses.push_back(floats(rig, loss[0])[0]);
    model.for_each_parameter(
        [&](const std::string&, Parameter& p) { rig.kernels->scale(*rig.stream, p.grad, -1.0, p.data, Write::accumulate); });
    storage.zero_grad();
  }
  EXPECT_NEAR(losses.front(), std::log(11.0F), 0.1F);
  EXPECT_LT(losses.back(), losses.front() - 0.5F);
}

TEST(MlpModel, HasItsNamesAndBlocks) {
  Mlp model({.layers = 2, .width = 4, .intermediate_size = 6, .vocab_size = 7});
  const auto all = parameters_of(model);
  EXPECT_EQ(all.at("embed.weight")->shape, (Shape{7, 4}));
  EXPECT_EQ(all.at("blocks.1.up.weight")->shape, (Shape{6, 4}));
  EXPECT_EQ(all.at("blocks.1.down.weight")->shape, (Shape{4, 6}));
  EXPECT_EQ(all.at("head.weight")->shape, (Shape{7, 4}));
  int blocks = 0;
  model.for_each_module([&](const std::string&, Module& m) { blocks += m.type_name() == "mlp_block"; });
  EXPECT_EQ(blocks, 2);
}

}  // namespace
}  // namespace mica::nn
