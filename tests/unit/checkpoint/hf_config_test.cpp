// SPDX-License-Identifier: Apache-2.0
#include "../../../src/checkpoint/convert/hf_config.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/temporary_folder.hpp"
#include "unit/checkpoint/hf_testing.hpp"

namespace mica::checkpoint {
namespace {

using test::error_of;
using test::HfFolder;
using test::TemporaryFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;

/// Writes a config and reads it.
HfModel model_of(const Json& config) {
  const TemporaryFolder folder;
  std::ofstream(folder / "config.json") << config.dump();
  return read_hf_model(folder.path());
}

TEST(HfConfig, KeysAndParametersAreMicas) {
  for (const char* name : {"gpt2", "gpt2_untied", "llama", "llama_untied"}) {
    const HfModel model = read_hf_model(test::hf_reference(name));
    std::vector<std::pair<std::string, Shape>> expected;
    test::make_model(model)->for_each_parameter(
        [&](const std::string& full_name, nn::Parameter& p) { expected.emplace_back(full_name, p.shape); });
    ASSERT_EQ(model.tensors.size(), expected.size()) << name;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(model.tensors[i].parameter, expected[i].first);
      EXPECT_EQ(model.tensors[i].shape, expected[i].second) << expected[i].first;
    }
  }
  const HfModel model = read_hf_model(test::hf_reference("gpt2"));
  EXPECT_THAT(model.keys.all(),
              ::testing::ElementsAre(::testing::Pair("context", "17"), ::testing::Pair("dropout", "0"), ::testing::Pair("heads", "3"),
                                     ::testing::Pair("intermediate_size", "0"), ::testing::Pair("layers", "2"),
                                     ::testing::Pair("tie_embeddings", "true"), ::testing::Pair("type", "gpt2"),
                                     ::testing::Pair("vocab_size", "61"), ::testing::Pair("width", "24")));
  EXPECT_EQ(read_hf_model(test::hf_reference("gpt2_untied")).keys.flag("tie_embeddings"), false);
}

TEST(HfConfig, AnOldConfigHasGpt2sOwnDefaults) {
  const HfModel model = model_of({{"model_type", "gpt2"}, {"n_inner", nullptr}});
  EXPECT_EQ(model.keys.integer("layers"), 12);
  EXPECT_EQ(model.keys.integer("width"), 768);
  EXPECT_EQ(model.keys.integer("heads"), 12);
  EXPECT_EQ(model.keys.integer("vocab_size"), 50257);
  EXPECT_EQ(model.keys.integer("context"), 1024);
  EXPECT_TRUE(model.keys.flag("tie_embeddings"));
}

// transformers takes these, too.
TEST(HfConfig, Gpt2sSizesHaveGeneralNames) {
  const Json general{{"model_type", "gpt2"},          {"hidden_size", 24}, {"num_attention_heads", 3}, {"num_hidden_layers", 2},
                     {"max_position_embeddings", 17}, {"n_inner", nullptr}};
  const HfModel model = model_of(general);
  EXPECT_EQ(model.keys.integer("width"), 24);
  EXPECT_EQ(model.keys.integer("heads"), 3);
  EXPECT_EQ(model.keys.integer("layers"), 2);
  EXPECT_EQ(model.keys.integer("context"), 17);
  Json both = general;
  both["n_head"] = 4;
  EXPECT_THAT(error_of<ConfigError>([&] { (void)model_of(both); }),
              HasSubstr("n_head is 4, but num_attention_heads, its other name, is 3"));
}

TEST(HfConfig, MissingTokenIdsAreTheDefaultsOfTheirVocabulary) {
  const auto ids_of = [](const Json& config) {
    const TemporaryFolder folder;
    std::ofstream(folder / "config.json") << config.dump();
    return read_hf_token_ids(folder.path());
  };
  const TokenIds of_gpt2{{"bos_token_id", {50256}}, {"eos_token_id", {50256}}};
  EXPECT_EQ(ids_of({{"model_type", "gpt2"}}), of_gpt2);
  EXPECT_EQ(ids_of({{"model_type", "gpt2"}, {"vocab_size", 50257}}), of_gpt2);
  EXPECT_EQ(ids_of({{"model_type", "gpt2"}, {"vocab_size", 50256}}), TokenIds());
  EXPECT_EQ(ids_of({{"model_type", "gpt2"}, {"vocab_size", 256}, {"eos_token_id", 7}}), (TokenIds{{"eos_token_id", {7}}}));
  EXPECT_EQ(ids_of({{"model_type", "llama"}, {"vocab_size", 2}}), (TokenIds{{"bos_token_id", {1}}}));
}

// An ordinary token of another vocabulary must not end its texts.
TEST(HfConfig, OnlyAVocabularyOfGpt2sSizeHasGpt2sTokenIds) {
  const TokenIds of_gpt2{{"bos_token_id", {50256}}, {"eos_token_id", {50256}}};
  for (const std::int64_t vocab_size : {50257, 50304}) EXPECT_EQ(own_token_ids(kHfGpt2, vocab_size), of_gpt2) << vocab_size;
  for (const std::int64_t vocab_size : {1, 256, 50256, 50305, 60000})
    EXPECT_EQ(own_token_ids(kHfGpt2, vocab_size), TokenIds()) << vocab_size;
  for (const std::int64_t vocab_size : {1, 32000, 50257, 128256}) EXPECT_EQ(own_token_ids(kHfLlama, vocab_size), TokenIds()) << vocab_size;

  std::map<std::string, std::string> keys = read_hf_model(test::hf_reference("gpt2")).keys.all();
  for (const std::string vocab_size : {"50257", "60000"}) {
    keys["vocab_size"] = vocab_size;
    const Json unknown = hf_config_json(kHfGpt2, {keys, ""}, DType::f32, {});
    EXPECT_TRUE(unknown.at("bos_token_id").is_null());
    EXPECT_TRUE(unknown.at("eos_token_id").is_null());
    EXPECT_TRUE(hf_generation_json(unknown).is_null());
  }
  const Json known = hf_config_json(kHfGpt2, {keys, ""}, DType::f32, {{"eos_token_id", {59999}}});
  EXPECT_TRUE(known.at("bos_token_id").is_null());
  EXPECT_EQ(known.at("eos_token_id"), 59999);
  EXPECT_EQ(hf_generation_json(known).at("eos_token_id"), 59999);
}

TEST(HfConfig, WhatIsWrittenReadsBackAsTheSameKeys) {
  for (const char* name : {"gpt2", "gpt2_untied", "llama", "llama_untied"}) {
    const HfModel model = read_hf_model(test::hf_reference(name));
    const Json written = hf_config_json(*model.architecture, model.keys, DType::bf16, {});
    EXPECT_EQ(written["torch_dtype"], "bfloat16");
    EXPECT_EQ(model_of(written).keys.all(), model.keys.all());
    // And it says no less than transformers' own file about what Mica knows.
    const Json original = HfFolder::reference(name).config;
    for (const char* key : {"architectures",
                            "model_type",
                            "vocab_size",
                            "tie_word_embeddings",
                            "n_positions",
                            "n_embd",
                            "n_layer",
                            "n_head",
                            "n_inner",
                            "activation_function",
                            "layer_norm_epsilon",
                            "scale_attn_weights",
                            "hidden_size",
                            "intermediate_size",
                            "num_hidden_layers",
                            "num_attention_heads",
                            "num_key_value_heads",
                            "head_dim",
                            "hidden_act",
                            "rms_norm_eps",
                            "max_position_embeddings",
                            "attention_bias",
                            "mlp_bias"}) {
      if (!original.contains(key)) continue;
      EXPECT_EQ(written[key], original[key]) << key;
    }
  }
}

TEST(HfConfig, LlamasKeysAndTensors) {
  const HfModel model = read_hf_model(test::hf_reference("llama"));
  const std::map<std::string, std::string> expected = {{"type", "llama"},
                                                       {"layers", "2"},
                                                       {"heads", "4"},
                                                       {"kv_heads", "2"},
                                                       {"head_dim", "6"},
                                                       {"width", "24"},
                                                       {"intermediate_size", "40"},
                                                       {"vocab_size", "41"},
                                                       {"context", "128"},
                                                       {"tie_embeddings", "true"},
                                                       {"rms_eps", "1e-05"},
                                                       {"rope_theta", "100"},
                                                       {"rope_scaling", "llama3"},
                                                       {"rope_factor", "8"},
                                                       {"rope_low_freq_factor", "1"},
                                                       {"rope_high_freq_factor", "4"},
                                                       {"rope_original_context", "64"}};
  EXPECT_EQ(model.keys.all(), expected);
  ASSERT_EQ(model.tensors.size(), 20U);  // 2 x 9 in blocks, embedding, norm
  EXPECT_EQ(model.tensors[2].parameter, "model.layers.0.self_attn.q_proj.weight");
  EXPECT_EQ(model.tensors[2].shape, (Shape{24, 24}));
  EXPECT_EQ(model.tensors[3].parameter, "model.layers.0.self_attn.k_proj.weight");
  EXPECT_EQ(model.tensors[3].shape, (Shape{12, 24}));
  EXPECT_EQ(model.tensors[9].shape, (Shape{24, 40}));  // down_proj
  for (const HfTensor& tensor : model.tensors) {
    EXPECT_EQ(tensor.hf_name, tensor.parameter);
    EXPECT_FALSE(tensor.is_transposed);
  }
  const HfModel untied = read_hf_model(test::hf_reference("llama_untied"));
  EXPECT_EQ(untied.tensors.back().parameter, "lm_head.weight");
  EXPECT_EQ(untied.tensors[2].shape, (Shape{48, 24}));  // 6 heads of 8
  EXPECT_EQ(untied.keys.text("rope_scaling"), "none");
  EXPECT_EQ(untied.keys.text("rms_eps"), "1e-06");
}

/// A config as versions before rope_parameters wrote it.
Json older_llama() {
  Json config = HfFolder::reference("llama").config;
  config.erase("rope_parameters");
  config["rope_theta"] = 100.0;
  config["rope_scaling"] = {{"rope_type", "llama3"},
                            {"factor", 8.0},
                            {"low_freq_factor", 1.0},
                            {"high_freq_factor", 4.0},
                            {"original_max_position_embeddings", 64}};
  return config;
}

TEST(HfConfig, RotarySettingsAreReadInAllSpellings) {
  const auto newer = read_hf_model(test::hf_reference("llama")).keys.all();
  Json config = older_llama();
  EXPECT_EQ(model_of(config).keys.all(), newer);
  config["rope_scaling"]["type"] = "llama3";  // both
  EXPECT_EQ(model_of(config).keys.all(), newer);
  config["rope_scaling"].erase("rope_type");
  EXPECT_EQ(model_of(config).keys.all(), newer);
  config["rope_parameters"] = HfFolder::reference("llama").config["rope_parameters"];  // of both ages
  EXPECT_EQ(model_of(config).keys.all(), newer);
  config.erase("rope_parameters");
  config["rope_scaling"] = nullptr;
  EXPECT_EQ(model_of(config).keys.text("rope_scaling"), "none");
  EXPECT_EQ(model_of(config).keys.real("rope_theta"), 100);
  config["rope_scaling"] = {{"type", "default"}};
  EXPECT_EQ(model_of(config).keys.text("rope_scaling"), "none");
  config.erase("rope_theta");
  EXPECT_EQ(model_of(config).keys.real("rope_theta"), 10000);
}

TEST(HfConfig, AnOldLlamaHasAsManyKeyHeadsAsHeads) {
  const HfModel model = model_of({{"model_type", "llama"}, {"hidden_size", 64}, {"num_attention_heads", 4}, {"rms_norm_eps", 1e-6}});
  EXPECT_EQ(model.keys.integer("kv_heads"), 4);
  EXPECT_EQ(model.keys.integer("head_dim"), 16);
  EXPECT_EQ(model.keys.integer("intermediate_size"), 11008);
  EXPECT_FALSE(model.keys.flag("tie_embeddings"));
}

TEST(HfConfig, ZeroStandsForWhatFollowsFromOtherKeys) {
  const ModelKeys keys({{"intermediate_size", "0"}, {"kv_heads", "0"}, {"head_dim", "0"}, {"width", "24"}, {"heads", "4"}}, "here");
  EXPECT_EQ(normalized(keys).integer("intermediate_size"), 96);
  EXPECT_EQ(normalized(keys).integer("kv_heads"), 4);
  EXPECT_EQ(normalized(keys).integer("head_dim"), 6);
}

TEST(HfConfig, WhatMicasLlamaCannotDoIsRefusedByName) {
  struct Refused {
    const char* key;
    Json value;
    const char* expected;
  };
  const Refused all[] = {
      {"hidden_act", "gelu", "hidden_act is \"gelu\", expected \"silu\""},
      {"attention_bias", true, "attention_bias is true"},
      {"mlp_bias", true, "mlp_bias is true"},
      {"num_key_value_heads", 3, "num_attention_heads 4 is not divisible by num_key_value_heads 3"},
      {"partial_rotary_factor", 0.5, "partial_rotary_factor is 0.5"},
      {"rope_theta", 500.0, "rope_theta is 500, but 100 inside rope_parameters"},
      {"rope_scaling", Json{{"type", "linear"}}, "rope_scaling is of type 'linear', but rope_parameters of 'llama3'"},
      {"rope_parameters", Json{{"rope_type", "yarn"}, {"factor", 2.0}}, "scaled by 'yarn'; Mica knows default and llama3"},
      {"rope_parameters", Json{{"rope_type", "llama3"}, {"type", "linear"}}, "rope_type is 'llama3', but type is 'linear'"},
      {"rope_parameters", Json{{"rope_type", "llama3"}, {"factor", 2.0}}, "low_freq_factor is missing"},
      {"rope_parameters", Json{{"rope_type", "default"}, {"partial_rotary_factor", 0.5}}, "partial_rotary_factor is 0.5"},
      {"rope_parameters", 3, "rope_parameters is 3, expected an object"},
      {"num_attention_heads", 20000, "model.heads is 20000"},
  };
  for (const Refused& refused : all) {
    Json config = HfFolder::reference("llama").config;
    config[refused.key] = refused.value;
    EXPECT_THAT(error_of<Error>([&] { (void)model_of(config); }), AllOf(HasSubstr("/config.json"), HasSubstr(refused.expected)))
        << refused.key;
  }
}

TEST(HfConfig, WhatMicasModelCannotDoIsRefusedByName) {
  struct Refused {
    const char* key;
    Json value;
    const char* expected;
  };
  const Refused all[] = {
      {"activation_function", "relu", "activation_function is \"relu\", expected \"gelu_new\""},
      {"n_inner", 100, "n_inner is 100, expected 96"},
      {"layer_norm_epsilon", 1e-6, "layer_norm_epsilon is 1e-06, expected 1e-05"},
      {"scale_attn_weights", false, "scale_attn_weights is false, expected true"},
      {"scale_attn_by_inverse_layer_idx", true, "scale_attn_by_inverse_layer_idx is true"},
      {"add_cross_attention", true, "add_cross_attention is true"},
      {"quantization_config", Json{{"bits", 4}}, "quantization_config"},
      {"n_head", 5, "n_embd 24 is not divisible by n_head 5"},
      {"n_layer", 0, "n_layer is 0, expected a whole number from 1"},
      {"n_layer", 10001, "model.layers is 10001"},
      {"n_layer", "2", "n_layer is \"2\", expected a whole number from 1"},
      {"n_layer", 2.5, "n_layer is 2.5, expected a whole number"},
      {"n_embd", 9007199254740993, "n_embd is 9007199254740993"},
      {"tie_word_embeddings", "yes", "tie_word_embeddings is \"yes\", expected true or false"},
      {"model_type", "bert", "model_type is 'bert'; Mica knows gpt2, llama"},
      {"model_type", nullptr, "model_type is ''"},
  };
  for (const Refused& refused : all) {
    Json config = HfFolder::reference("gpt2").config;
    config[refused.key] = refused.value;
    EXPECT_THAT(error_of<Error>([&] { (void)model_of(config); }), AllOf(HasSubstr("/config.json"), HasSubstr(refused.expected)))
        << refused.key;
  }
}

TEST(HfConfig, TextThatIsNoJsonObjectIsRefused) {
  const TemporaryFolder folder;
  const std::string path = folder / "config.json";
  const auto error_for = [&](const std::string& text) {
    std::ofstream(path) << text;
    return error_of<CheckpointError>([&] { (void)read_hf_model(folder.path()); });
  };
  EXPECT_THAT(error_of<ConfigError>([&] { (void)read_hf_model(folder.path()); }), HasSubstr(path + ": no such file"));
  EXPECT_THAT(error_for(""), AllOf(HasSubstr(path), HasSubstr("no valid JSON")));
  EXPECT_THAT(error_for("[1]"), HasSubstr("is no JSON object"));
  EXPECT_THAT(error_for(R"({"n_layer": 1, "n_head": 2, "n_layer": 3})"), HasSubstr("has the key \"n_layer\" twice"));
  EXPECT_THAT(error_for(R"({"a": {"x": 1, "x": 3}})"), HasSubstr("has the key \"x\" twice"));
  EXPECT_THAT(error_for(R"({"a": )" + std::string(30, '[')), HasSubstr("is nested deeper than 16 levels"));
  EXPECT_THAT(error_for("{\"a\": \"" + std::string(2 << 20, 'x') + "\"}"), HasSubstr("expected at most 1048576"));
}

}  // namespace
}  // namespace mica::checkpoint
