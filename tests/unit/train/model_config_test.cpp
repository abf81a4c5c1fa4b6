// SPDX-License-Identifier: Apache-2.0
// The section [model]: what a Llama is made of, and what is refused before anything is made.
#include "mica/train/model_config.hpp"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "mica/core/error.hpp"

namespace mica::train {
namespace {

Config parsed(std::vector<std::string> flags) {
  flags.insert(flags.begin(), {"--data.train=tokens.bin", "--train.seq_len=16", "--model.context=32"});
  return parse_config({}, flags);
}

/// What check_config says of a Llama of width 16 with these flags.
std::string model_refusal(std::vector<std::string> flags) {
  flags.insert(flags.begin(), {"--model.type=llama", "--model.width=16"});
  try {
    check_config(parsed(std::move(flags)));
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no ConfigError";
}

void expect_says(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) EXPECT_NE(text.find(part), std::string::npos) << part << " in: " << text;
}

TEST(ModelConfig, ALlamaHasWhatItsKeysSay) {
  const Config config =
      parsed({"--model.type=llama", "--model.layers=2", "--model.heads=6", "--model.kv_heads=3", "--model.head_dim=8", "--model.width=20",
              "--model.intermediate_size=28", "--model.vocab_size=29", "--model.tie_embeddings=false", "--model.rms_eps=1e-6",
              "--model.rope_theta=500000", "--model.rope_scaling=llama3", "--model.rope_factor=32", "--model.rope_low_freq_factor=2",
              "--model.rope_high_freq_factor=5", "--model.rope_original_context=100"});
  check_config(config);
  const nn::LlamaConfig llama = llama_config(config.model);
  EXPECT_EQ(llama.layers, 2);
  EXPECT_EQ(llama.heads, 6);
  EXPECT_EQ(llama.num_kv_heads(), 3);
  EXPECT_EQ(llama.head_size(), 8);
  EXPECT_EQ(llama.width, 20);
  EXPECT_EQ(llama.intermediate_size, 28);
  EXPECT_EQ(llama.context, 32);
  EXPECT_EQ(llama.vocab_size, 29);
  EXPECT_FALSE(llama.tie_embeddings);
  EXPECT_EQ(llama.rms_eps, 1e-6);
  EXPECT_EQ(llama.rotary.theta, 500000);
  EXPECT_EQ(llama.rotary.scaling, nn::RotaryOptions::Scaling::llama3);
  EXPECT_EQ(llama.rotary.factor, 32);
  EXPECT_EQ(llama.rotary.low_freq_factor, 2);
  EXPECT_EQ(llama.rotary.high_freq_factor, 5);
  EXPECT_EQ(llama.rotary.original_context, 100);
  // 2 embeddings of 29 x 20; a block: q and o 48 x 20, k and v 24 x 20, three of 28 x 20, 2 norms; the last norm.
  EXPECT_EQ(make_model(config.model)->num_parameters(), 2 * 580 + 2 * (2 * 960 + 2 * 480 + 3 * 560 + 40) + 20);
}

TEST(ModelConfig, SizesOfALlamaThatAreLeftOut) {
  const auto llama = [](const std::string& width) {
    return llama_config(parsed({"--model.type=llama", "--model.heads=4", "--model.width=" + width}).model);
  };
  EXPECT_EQ(llama("96").intermediate_size, 384);
  EXPECT_EQ(llama("96").num_kv_heads(), 4);
  EXPECT_EQ(llama("96").head_size(), 24);
  EXPECT_EQ(llama("96").rotary.scaling, nn::RotaryOptions::Scaling::none);
}

TEST(ModelConfig, SizesOfALlamaThatDoNotFitAreRefused) {
  EXPECT_EQ(model_refusal({}), "no ConfigError");
  expect_says(model_refusal({"--model.heads=3"}), {"model.width 16", "model.heads 3", "model.head_dim"});
  EXPECT_EQ(model_refusal({"--model.heads=3", "--model.head_dim=6"}), "no ConfigError");
  expect_says(model_refusal({"--model.heads=4", "--model.kv_heads=3"}), {"model.heads 4", "model.kv_heads 3"});
  expect_says(model_refusal({"--model.heads=16"}), {"1 columns", "even", "model.heads 16"});
  expect_says(model_refusal({"--model.head_dim=7"}), {"7 columns", "even", "model.head_dim"});
  expect_says(model_refusal({"--train.seq_len=33"}), {"train.seq_len = 33", "model.context = 32"});
  expect_says(model_refusal({"--model.rope_theta=0"}), {"model.rope_theta", "'0'"});
  expect_says(model_refusal({"--model.rope_scaling=yarn"}), {"model.rope_scaling", "'yarn'", "none, llama3"});
  expect_says(model_refusal({"--model.rope_scaling=llama3", "--model.rope_low_freq_factor=4"}),
              {"model.rope_high_freq_factor is 4", "model.rope_low_freq_factor, which is 4"});
  expect_says(model_refusal({"--model.layers=10000", "--model.heads=10000", "--model.head_dim=65536"}), {"parameters"});
}

}  // namespace
}  // namespace mica::train
