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
using testing::AllOf;
using testing::HasSubstr;

/// Writes a config and reads it.
HfModel model_of(const Json& config) {
  const TemporaryFolder folder;
  std::ofstream(folder / "config.json") << config.dump();
  return read_hf_model(folder.path());
}

TEST(HfConfig, Gpt2sKeysAndParametersAreMicas) {
  for (const char* name : {"gpt2", "gpt2_untied"}) {
    const HfModel model = read_hf_model(test::hf_reference(name));
    EXPECT_EQ(model.architecture->type, "gpt2");
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
              testing::ElementsAre(
                  testing::Pair("context", "17"), testing::Pair("dropout", "0"), testing::Pair("heads", "3"),
                  testing::Pair("hidden", "0"), testing::Pair("layers", "2"), testing::Pair("tie_embeddings", "true"),
                  testing::Pair("type", "gpt2"), testing::Pair("vocab_size", "61"), testing::Pair("width", "24")));
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

TEST(HfConfig, WhatIsWrittenReadsBackAsTheSameKeys) {
  for (const char* name : {"gpt2", "gpt2_untied"}) {
    const HfModel model = read_hf_model(test::hf_reference(name));
    const Json written = Json::parse(hf_config_text(*model.architecture, model.keys, DType::bf16));
    EXPECT_EQ(written["torch_dtype"], "bfloat16");
    EXPECT_EQ(model_of(written).keys.all(), model.keys.all());
    // And it says no less than transformers' own file about what Mica knows.
    const Json original = HfFolder::reference(name).config;
    for (const char* key :
         {"architectures", "model_type", "vocab_size", "n_positions", "n_embd", "n_layer", "n_head", "n_inner",
          "activation_function", "layer_norm_epsilon", "scale_attn_weights", "tie_word_embeddings"}) {
      EXPECT_EQ(written[key], original[key]) << key;
    }
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
      {"model_type", "bert", "model_type is 'bert'; Mica knows gpt2"},
      {"model_type", nullptr, "model_type is ''"},
  };
  for (const Refused& refused : all) {
    Json config = HfFolder::reference("gpt2").config;
    config[refused.key] = refused.value;
    EXPECT_THAT(error_of<Error>([&] { (void)model_of(config); }),
                AllOf(HasSubstr("/config.json"), HasSubstr(refused.expected)))
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
