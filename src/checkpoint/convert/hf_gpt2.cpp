// SPDX-License-Identifier: Apache-2.0
// GPT-2: transformers' GPT2LMHeadModel. Its Conv1D layers store their weights [in, out].

#include "mica/core/error.hpp"

#include "hf_config.hpp"

namespace mica::checkpoint {
namespace {

constexpr std::int64_t kVocabSize = 50257;        // of OpenAI's vocabulary; its last id is <|endoftext|>
constexpr std::int64_t kPaddedVocabSize = 50304;  // the next multiple of 64 and 128, to which many pad it for speed

std::map<std::string, std::string> read_config(const HfConfig& config) {
  const auto either = [&](const char* own, const char* general, std::int64_t otherwise) {
    const std::int64_t value = config.integer(own, config.integer(general, otherwise));
    require<ConfigError>(config.integer(general, value) == value, "{}: {} is {}, but {}, its other name, is {}", config.path(), own, value,
                         general, config.integer(general, value));
    return value;
  };
  const std::int64_t width = either("n_embd", "hidden_size", 768);
  const std::int64_t heads = either("n_head", "num_attention_heads", 12);
  require<ConfigError>(width % heads == 0, "{}: n_embd {} is not divisible by n_head {}", config.path(), width, heads);
  config.expect("activation_function", "gelu_new", "Mica's GPT-2 has no other activation");
  config.expect("n_inner", 4 * width, "Mica's GPT-2 has 4 * n_embd channels in its feed-forward layers");
  config.expect("layer_norm_epsilon", 1e-5, "Mica's layer norms have no other epsilon");
  config.expect("scale_attn_weights", true, "Mica's attention is always scaled");
  config.expect("scale_attn_by_inverse_layer_idx", false, "Mica's attention is not scaled by layer");
  config.expect("add_cross_attention", false, "Mica's GPT-2 has no cross-attention");
  // reorder_and_upcast_attn only changes rounding; the *_pdrop are for training, where model.dropout is used.
  return {{"type", "gpt2"},
          {"layers", std::to_string(either("n_layer", "num_hidden_layers", 12))},
          {"heads", std::to_string(heads)},
          {"width", std::to_string(width)},
          {"intermediate_size", "0"},  // 4 * width
          {"vocab_size", std::to_string(config.integer("vocab_size", kVocabSize))},
          {"context", std::to_string(either("n_positions", "max_position_embeddings", 1024))},
          {"tie_embeddings", config.flag("tie_word_embeddings", true) ? "true" : "false"},
          {"dropout", "0"}};
}

Json write_config(const ModelKeys& keys) {
  const double dropout = keys.real("dropout");
  return {{"vocab_size", keys.integer("vocab_size")},
          {"n_positions", keys.integer("context")},
          {"n_ctx", keys.integer("context")},
          {"n_embd", keys.integer("width")},
          {"n_layer", keys.integer("layers")},
          {"n_head", keys.integer("heads")},
          {"n_inner", nullptr},
          {"activation_function", "gelu_new"},
          {"resid_pdrop", dropout},
          {"embd_pdrop", dropout},
          {"attn_pdrop", 0.0},
          {"layer_norm_epsilon", 1e-5},
          {"initializer_range", 0.02},
          {"scale_attn_weights", true},
          {"scale_attn_by_inverse_layer_idx", false},
          {"reorder_and_upcast_attn", false},
          {"tie_word_embeddings", keys.flag("tie_embeddings")},
          {"bos_token_id", nullptr},
          {"eos_token_id", nullptr},
          {"use_cache", true}};
}

std::vector<HfTensor> tensors(const ModelKeys& keys) {
  const std::int64_t width = keys.integer("width");
  std::vector<HfTensor> all;
  const auto add = [&](const std::string& name, Shape shape, bool is_transposed = false) {
    all.push_back({name, shape, name, is_transposed});
  };
  const auto add_norm = [&](const std::string& name) {
    add(name + ".weight", Shape{width});
    add(name + ".bias", Shape{width});
  };
  const auto add_conv1d = [&](const std::string& name, std::int64_t out, std::int64_t in) {
    add(name + ".weight", Shape{out, in}, true);
    add(name + ".bias", Shape{out});
  };
  add("transformer.wte.weight", Shape{keys.integer("vocab_size"), width});
  add("transformer.wpe.weight", Shape{keys.integer("context"), width});
  for (std::int64_t i = 0; i < keys.integer("layers"); ++i) {
    const std::string block = fmt::format("transformer.h.{}.", i);
    add_norm(block + "ln_1");
    add_conv1d(block + "attn.c_attn", 3 * width, width);
    add_conv1d(block + "attn.c_proj", width, width);
    add_norm(block + "ln_2");
    add_conv1d(block + "mlp.c_fc", 4 * width, width);
    add_conv1d(block + "mlp.c_proj", width, 4 * width);
  }
  add_norm("transformer.ln_f");
  if (!keys.flag("tie_embeddings")) add("lm_head.weight", Shape{keys.integer("vocab_size"), width});
  return all;
}

/// Causal masks: "h.3.attn.bias", "h.3.attn.masked_bias".
bool is_buffer(std::string_view name) {
  return name.starts_with("h.") && (name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias"));
}

}  // namespace

const HfArchitecture kHfGpt2{.type = "gpt2",
                             .model_type = "gpt2",
                             .class_name = "GPT2LMHeadModel",
                             .read_config = read_config,
                             .write_config = write_config,
                             .tensors = tensors,
                             .block_prefix = "transformer.h.",
                             .optional_prefix = "transformer.",
                             .is_buffer = is_buffer,
                             .bos_token_id = kVocabSize - 1,
                             .eos_token_id = kVocabSize - 1,
                             .own_vocab_size = kVocabSize,
                             .padded_vocab_size = kPaddedVocabSize};

}  // namespace mica::checkpoint
