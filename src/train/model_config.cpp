// SPDX-License-Identifier: Apache-2.0
#include "mica/train/model_config.hpp"

#include <algorithm>

#include "mica/core/error.hpp"
#include "mica/nn/models/gpt2.hpp"
#include "mica/nn/models/mlp.hpp"

namespace mica::train {
namespace {

void check_seq_len(const Config& config) {
  require<ConfigError>(config.train.seq_len <= config.model.context,
                       "train.seq_len = {} is longer than model.context = {}: lower seq_len or raise context", config.train.seq_len,
                       config.model.context);
}

/// Refuses sizes that no machine can hold, before integers overflow in the memory plan.
void check_sizes(const Config& config) {
  const Config::Model& model = config.model;
  const auto number = [](std::int64_t value) { return static_cast<double>(value); };
  const bool is_llama = model.type == "llama";
  const double width = number(model.width);
  const double hidden = model.intermediate_size == 0 ? 4 * width : number(model.intermediate_size);
  const double q = is_llama ? number(model.heads) * number(llama_config(model).head_size()) : width;
  const double parameters =
      number(model.layers) * (4 * q + (is_llama ? 3 : 2) * hidden) * width + number(model.vocab_size + model.context) * width;
  constexpr double kMostParameters = 1e14;
  require<ConfigError>(parameters <= kMostParameters,
                       "model.layers = {}, model.width = {} and model.vocab_size = {} make about {:.1e} parameters, expected "
                       "at most {:.0e}: choose smaller ones",
                       model.layers, model.width, model.vocab_size, parameters, kMostParameters);
  const double activation = number(config.train.micro_batch) * number(config.train.seq_len) * std::max({width, hidden, q});
  constexpr double kLargestActivation = 1e14;
  require<ConfigError>(activation <= kLargestActivation,
                       "train.micro_batch = {} sequences of train.seq_len = {} tokens make activations of {:.1e} elements, more than any "
                       "memory holds: choose smaller ones",
                       config.train.micro_batch, config.train.seq_len, activation);
}

}  // namespace

nn::LlamaConfig llama_config(const Config::Model& m) {
  nn::LlamaConfig llama;
  llama.layers = m.layers;
  llama.heads = m.heads;
  llama.kv_heads = m.kv_heads;
  llama.head_dim = m.head_dim;
  llama.width = m.width;
  llama.intermediate_size = m.intermediate_size == 0 ? 4 * m.width : m.intermediate_size;
  llama.context = m.context;
  llama.vocab_size = m.vocab_size;
  llama.tie_embeddings = m.tie_embeddings;
  llama.rms_eps = m.rms_eps;
  llama.rotary.theta = m.rope_theta;
  if (m.rope_scaling == "llama3") llama.rotary.scaling = nn::RotaryOptions::Scaling::llama3;
  llama.rotary.factor = m.rope_factor;
  llama.rotary.low_freq_factor = m.rope_low_freq_factor;
  llama.rotary.high_freq_factor = m.rope_high_freq_factor;
  llama.rotary.original_context = m.rope_original_context;
  return llama;
}

std::unique_ptr<nn::Module> make_model(const Config::Model& m) {
  if (m.type == "mlp") {
    return std::make_unique<nn::Mlp>(nn::MlpConfig{.layers = m.layers,
                                                   .width = m.width,
                                                   .intermediate_size = m.intermediate_size == 0 ? 4 * m.width : m.intermediate_size,
                                                   .vocab_size = m.vocab_size});
  }
  if (m.type == "llama") return std::make_unique<nn::Llama>(llama_config(m));
  return std::make_unique<nn::Gpt2>(nn::Gpt2Config{.layers = m.layers,
                                                   .heads = m.heads,
                                                   .width = m.width,
                                                   .context = m.context,
                                                   .vocab_size = m.vocab_size,
                                                   .tie_embeddings = m.tie_embeddings,
                                                   .dropout = m.dropout});
}

void check_model(const Config& config) {
  const Config::Model& model = config.model;
  if (model.type == "gpt2") {
    require<ConfigError>(model.width % model.heads == 0, "model.width = {} is not divisible by model.heads = {}: choose a multiple of {}",
                         model.width, model.heads, model.heads);
    require<ConfigError>(model.intermediate_size == 0 || model.intermediate_size == 4 * model.width,
                         "model.intermediate_size = {}, but GPT-2's is 4 * model.width = {}: leave it 0", model.intermediate_size,
                         4 * model.width);
    check_seq_len(config);
  }
  if (model.type == "llama") {
    llama_config(model).validate();
    check_seq_len(config);
  }
  check_sizes(config);
}

}  // namespace mica::train
