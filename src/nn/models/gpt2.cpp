// SPDX-License-Identifier: Apache-2.0
#include "mica/nn/models/gpt2.hpp"

#include <cmath>

#include "mica/nn/activation.hpp"
#include "mica/nn/fused.hpp"
#include "mica/nn/input_check.hpp"

#include "expect_positive.hpp"

namespace mica::nn {
namespace {

constexpr double kWeightStd = 0.02;
constexpr std::size_t kAttentionRecord = 0, kMlpRecord = 1;                      // of a block
constexpr std::size_t kTokensRecord = 0, kPositionsRecord = 1, kBodyRecord = 2;  // of the transformer

double residual_projection_std(const Gpt2Config& config) { return kWeightStd / std::sqrt(2.0 * static_cast<double>(config.layers)); }

class Gpt2Mlp final : public Sequential {
 public:
  Gpt2Mlp(const Gpt2Config& config, const std::string& full_name) : Sequential("gpt2_mlp") {
    add<Linear>("c_fc", config.width, 4 * config.width);
    add<Gelu>("act");
    add<Linear>("c_proj", 4 * config.width, config.width, LinearOptions{.weight_std = residual_projection_std(config)});
    add<Dropout>("dropout", config.dropout, full_name + ".dropout");
  }
};

}  // namespace

void Gpt2Config::validate() const {
  require<ConfigError>(layers >= 0, "model.layers is {}, expected 0 or more", layers);
  expect_positive({{"heads", heads}, {"width", width}, {"context", context}, {"vocab_size", vocab_size}});
  require<ConfigError>(width % heads == 0, "model.width {} is not divisible by model.heads {}: every head gets width / heads columns",
                       width, heads);
  require<ConfigError>(dropout >= 0 && dropout < 1, "model.dropout is {}, expected a probability in [0, 1)", dropout);
}

Gpt2Block::Gpt2Block(const Gpt2Config& config, const std::string& full_name) : Module("gpt2_block") {
  attention_branch_.push_back(&add_child<LayerNorm>("ln_1", config.width));
  attention_branch_.push_back(&add_child<CausalSelfAttention>("attn", AttentionOptions{.width = config.width,
                                                                                       .heads = config.heads,
                                                                                       .proj_std = residual_projection_std(config),
                                                                                       .dropout = config.dropout,
                                                                                       .dropout_name = full_name + ".attn.resid_dropout"}));
  mlp_branch_.push_back(&add_child<LayerNorm>("ln_2", config.width));
  mlp_branch_.push_back(&add_child<Gpt2Mlp>("mlp", config, full_name + ".mlp"));
}

Tensors Gpt2Block::do_forward(Context& context, Tensors xs, Record* record) {
  expect_inputs(*this, xs, 1);
  return list_of(residuals_forward(context, {attention_branch_, mlp_branch_}, std::move(xs[0]), record));
}

Tensors Gpt2Block::do_backward(Context& context, Record& record, Tensors dys) {
  dys = list_of(residual_backward(context, mlp_branch_, record.child(kMlpRecord), std::move(dys)));
  return list_of(residual_backward(context, attention_branch_, record.child(kAttentionRecord), std::move(dys)));
}

Gpt2Transformer::Gpt2Transformer(const Gpt2Config& config)
    : Module("gpt2_transformer"),
      wte_(add_child<Embedding>("wte", config.vocab_size, config.width, kWeightStd)),
      wpe_(add_child<PositionEmbedding>("wpe", config.context, config.width, kWeightStd)) {
  body_.push_back(&add_child<Dropout>("drop", config.dropout, "transformer.drop"));
  for (std::int64_t i = 0; i < config.layers; ++i) {
    const std::string name = "h." + std::to_string(i);
    body_.push_back(&add_child<Gpt2Block>(name, config, "transformer." + name));
  }
  body_.push_back(&add_child<LayerNorm>("ln_f", config.width));
}

Tensors Gpt2Transformer::do_forward(Context& context, Tensors xs, Record* record) {
  expect_inputs(*this, xs, 1);
  Record *of_tokens = child_record(record), *of_positions = child_record(record);
  std::optional<Tensors> h = fused_forward(context, wte_, wpe_, xs, of_tokens, of_positions);
  if (!h) {
    const Tensor ids = xs[0];
    h = wte_.forward(context, std::move(xs), of_tokens);
    h->push_back(ids);
    h = wpe_.forward(context, *std::move(h), of_positions);
  }
  return chain_forward(context, body_, *std::move(h), child_record(record));
}

Tensors Gpt2Transformer::do_backward(Context& context, Record& record, Tensors dys) {
  dys = chain_backward(context, body_, record.child(kBodyRecord), std::move(dys));
  dys = wpe_.backward(context, std::move(record.child(kPositionsRecord)), std::move(dys));
  dys.resize(1);
  return wte_.backward(context, std::move(record.child(kTokensRecord)), std::move(dys));
}

Gpt2::Gpt2(const Gpt2Config& config) : LanguageModel("gpt2"), config_(config) {
  config_.validate();
  auto& transformer = add_body<Gpt2Transformer>("transformer", config_);
  if (config_.tie_embeddings) {
    set_head("lm_head", transformer.wte().weight());
  } else {
    set_head("lm_head", config_.vocab_size, config_.width, kWeightStd);
  }
}

}  // namespace mica::nn
