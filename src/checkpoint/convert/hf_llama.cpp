// SPDX-License-Identifier: Apache-2.0
// Llama 2 and 3: transformers' LlamaForCausalLM. Names and orientation are Mica's own.

#include "mica/core/error.hpp"

#include "hf_config.hpp"

namespace mica::checkpoint {
namespace {

struct Rotary {
  double theta = 10000;
  std::string scaling = "none";
  double factor = 8, low_freq_factor = 1, high_freq_factor = 4;
  std::int64_t original_context = 8192;
};

/// "rope_type", or "type" in older files; "" if both are missing.
std::string rope_type(const HfConfig& rope) {
  const std::string now = rope.text("rope_type", "");
  const std::string before = rope.text("type", "");
  require<ConfigError>(now.empty() || before.empty() || now == before, "{}: rope_type is '{}', but type is '{}'", rope.path(), now, before);
  return now.empty() ? before : now;
}

/// Older files have rope_theta, and rope_scaling if positions are scaled; in newer ones, rope_parameters has everything.
Rotary read_rotary(const HfConfig& config) {
  const HfConfig older = config.object("rope_scaling");
  const HfConfig newer = config.object("rope_parameters");
  const bool is_newer = config.has("rope_parameters");
  const HfConfig& rope = is_newer ? newer : older;
  Rotary rotary;
  rotary.theta = rope.real("rope_theta", config.real("rope_theta", rotary.theta));
  require<ConfigError>(!config.has("rope_theta") || config.real("rope_theta", 0) == rotary.theta, "{}: rope_theta is {}, but {} inside {}",
                       config.path(), config.real("rope_theta", 0), rotary.theta, is_newer ? "rope_parameters" : "rope_scaling");
  const std::string type = rope_type(rope);
  require<ConfigError>(!is_newer || !config.has("rope_scaling") || rope_type(older) == type,
                       "{}: rope_scaling is of type '{}', but rope_parameters of '{}'", config.path(), rope_type(older), type);
  for (const HfConfig* each : std::initializer_list<const HfConfig*>{&config, &rope}) {
    each->expect("partial_rotary_factor", 1.0, "Mica rotates all channels of a head");
  }
  if (type.empty() || type == "default") return rotary;
  require<ConfigError>(type == "llama3", "{}: rotary positions are scaled by '{}'; Mica knows default and llama3", rope.path(), type);
  for (const char* key : {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}) {
    require<ConfigError>(rope.has(key), "{}: {} is missing, which scaling by llama3 needs", rope.path(), key);
  }
  rotary.scaling = type;
  rotary.factor = rope.real("factor", 0);
  rotary.low_freq_factor = rope.real("low_freq_factor", 0);
  rotary.high_freq_factor = rope.real("high_freq_factor", 0);
  rotary.original_context = rope.integer("original_max_position_embeddings", 0);
  return rotary;
}

std::map<std::string, std::string> read_config(const HfConfig& config) {
  const std::int64_t width = config.integer("hidden_size", 4096);
  const std::int64_t heads = config.integer("num_attention_heads", 32);
  const std::int64_t kv_heads = config.integer("num_key_value_heads", heads);
  require<ConfigError>(heads % kv_heads == 0, "{}: num_attention_heads {} is not divisible by num_key_value_heads {}", config.path(), heads,
                       kv_heads);
  require<ConfigError>(config.has("head_dim") || width % heads == 0, "{}: hidden_size {} is not divisible by num_attention_heads {}",
                       config.path(), width, heads);
  config.expect("hidden_act", "silu", "Mica's Llama has no other activation");
  config.expect("attention_bias", false, "Mica's Llama has no biases");
  config.expect("mlp_bias", false, "Mica's Llama has no biases");
  const Rotary rotary = read_rotary(config);
  return {{"type", "llama"},
          {"layers", std::to_string(config.integer("num_hidden_layers", 32))},
          {"heads", std::to_string(heads)},
          {"kv_heads", std::to_string(kv_heads)},
          {"head_dim", std::to_string(config.integer("head_dim", width / heads))},
          {"width", std::to_string(width)},
          {"intermediate_size", std::to_string(config.integer("intermediate_size", 11008))},
          {"vocab_size", std::to_string(config.integer("vocab_size", 32000))},
          {"context", std::to_string(config.integer("max_position_embeddings", 2048))},
          {"tie_embeddings", config.flag("tie_word_embeddings", false) ? "true" : "false"},
          {"rms_eps", fmt::format("{}", config.real("rms_norm_eps", 1e-6))},
          {"rope_theta", fmt::format("{}", rotary.theta)},
          {"rope_scaling", rotary.scaling},
          {"rope_factor", fmt::format("{}", rotary.factor)},
          {"rope_low_freq_factor", fmt::format("{}", rotary.low_freq_factor)},
          {"rope_high_freq_factor", fmt::format("{}", rotary.high_freq_factor)},
          {"rope_original_context", std::to_string(rotary.original_context)}};
}

/// Writes the rotary settings in the older form, which all versions read.
Json write_config(const ModelKeys& keys) {
  Json scaling = nullptr;
  if (keys.text("rope_scaling") != "none") {
    scaling = {{"rope_type", keys.text("rope_scaling")},
               {"factor", keys.real("rope_factor")},
               {"low_freq_factor", keys.real("rope_low_freq_factor")},
               {"high_freq_factor", keys.real("rope_high_freq_factor")},
               {"original_max_position_embeddings", keys.integer("rope_original_context")}};
  }
  return {{"vocab_size", keys.integer("vocab_size")},
          {"max_position_embeddings", keys.integer("context")},
          {"hidden_size", keys.integer("width")},
          {"intermediate_size", keys.integer("intermediate_size")},
          {"num_hidden_layers", keys.integer("layers")},
          {"num_attention_heads", keys.integer("heads")},
          {"num_key_value_heads", keys.integer("kv_heads")},
          {"head_dim", keys.integer("head_dim")},
          {"hidden_act", "silu"},
          {"rms_norm_eps", keys.real("rms_eps")},
          {"rope_theta", keys.real("rope_theta")},
          {"rope_scaling", scaling},
          {"attention_bias", false},
          {"mlp_bias", false},
          {"attention_dropout", 0.0},
          {"initializer_range", 0.02},
          {"tie_word_embeddings", keys.flag("tie_embeddings")},
          {"bos_token_id", nullptr},
          {"eos_token_id", nullptr},
          {"use_cache", true}};
}

std::vector<HfTensor> tensors(const ModelKeys& keys) {
  const std::int64_t width = keys.integer("width");
  const std::int64_t hidden = keys.integer("intermediate_size");
  const std::int64_t q_width = keys.integer("heads") * keys.integer("head_dim");
  const std::int64_t kv_width = keys.integer("kv_heads") * keys.integer("head_dim");
  std::vector<HfTensor> all;
  const auto add = [&](const std::string& name, Shape shape) { all.push_back({name, shape, name}); };
  add("model.embed_tokens.weight", Shape{keys.integer("vocab_size"), width});
  for (std::int64_t i = 0; i < keys.integer("layers"); ++i) {
    const std::string block = fmt::format("model.layers.{}.", i);
    add(block + "input_layernorm.weight", Shape{width});
    add(block + "self_attn.q_proj.weight", Shape{q_width, width});
    add(block + "self_attn.k_proj.weight", Shape{kv_width, width});
    add(block + "self_attn.v_proj.weight", Shape{kv_width, width});
    add(block + "self_attn.o_proj.weight", Shape{width, q_width});
    add(block + "post_attention_layernorm.weight", Shape{width});
    add(block + "mlp.gate_proj.weight", Shape{hidden, width});
    add(block + "mlp.up_proj.weight", Shape{hidden, width});
    add(block + "mlp.down_proj.weight", Shape{width, hidden});
  }
  add("model.norm.weight", Shape{width});
  if (!keys.flag("tie_embeddings")) add("lm_head.weight", Shape{keys.integer("vocab_size"), width});
  return all;
}

/// Rotary frequencies, which can be computed from config.json.
bool is_buffer(std::string_view name) { return name.ends_with(".rotary_emb.inv_freq"); }

}  // namespace

const HfArchitecture kHfLlama{.type = "llama",
                              .model_type = "llama",
                              .class_name = "LlamaForCausalLM",
                              .read_config = read_config,
                              .write_config = write_config,
                              .tensors = tensors,
                              .block_prefix = "model.layers.",
                              .optional_prefix = "model.",
                              .is_buffer = is_buffer,
                              .bos_token_id = 1,
                              .eos_token_id = 2};

}  // namespace mica::checkpoint
