// SPDX-License-Identifier: Apache-2.0
#include "mica/nn/models/llama.hpp"

#include "mica/nn/input_check.hpp"
#include "mica/nn/key_value_cache.hpp"
#include "mica/nn/rms_norm.hpp"
#include "mica/nn/swiglu.hpp"

#include "expect_positive.hpp"

namespace mica::nn {
namespace {

constexpr double kWeightStd = 0.02;
constexpr std::size_t kAttentionRecord = 0, kMlpRecord = 1;  // of a block

}  // namespace

void LlamaConfig::validate() const {
  require<ConfigError>(layers >= 0, "model.layers is {}, expected 0 or more", layers);
  expect_positive(
      {{"heads", heads}, {"width", width}, {"intermediate_size", intermediate_size}, {"context", context}, {"vocab_size", vocab_size}});
  require<ConfigError>(kv_heads >= 0 && heads % num_kv_heads() == 0,
                       "model.heads {} is not divisible by model.kv_heads {}: every key and value head serves the same number of "
                       "query heads",
                       heads, kv_heads);
  require<ConfigError>(head_dim > 0 || (head_dim == 0 && width % heads == 0),
                       "model.width {} is not divisible by model.heads {}: every head gets width / heads columns, or "
                       "model.head_dim, which is {}",
                       width, heads, head_dim);
  require<ConfigError>(head_size() % 2 == 0,
                       "a head has {} columns, expected an even number: rotary positions rotate pairs of them (model.width "
                       "{} / model.heads {}, or model.head_dim)",
                       head_size(), width, heads);
  require<ConfigError>(rms_eps >= 0, "model.rms_eps is {}, expected 0 or more", rms_eps);
  rotary.validate();
}

LlamaBlock::LlamaBlock(const LlamaConfig& config) : Module("llama_block") {
  attention_branch_.push_back(&add_child<RmsNorm>("input_layernorm", config.width, config.rms_eps));
  attention_branch_.push_back(&add_child<GroupedQueryAttention>("self_attn", GroupedQueryAttentionOptions{.width = config.width,
                                                                                                          .heads = config.heads,
                                                                                                          .kv_heads = config.num_kv_heads(),
                                                                                                          .head_dim = config.head_size(),
                                                                                                          .rotary = config.rotary,
                                                                                                          .weight_std = kWeightStd}));
  mlp_branch_.push_back(&add_child<RmsNorm>("post_attention_layernorm", config.width, config.rms_eps));
  mlp_branch_.push_back(&add_child<SwiGluMlp>("mlp", config.width, config.intermediate_size, kWeightStd));
}

Tensors LlamaBlock::do_forward(Context& context, Tensors xs, Record* record) {
  expect_inputs(*this, xs, 1);
  return list_of(residuals_forward(context, {attention_branch_, mlp_branch_}, std::move(xs[0]), record));
}

Tensors LlamaBlock::do_backward(Context& context, Record& record, Tensors dys) {
  dys = list_of(residual_backward(context, mlp_branch_, record.child(kMlpRecord), std::move(dys)));
  return list_of(residual_backward(context, attention_branch_, record.child(kAttentionRecord), std::move(dys)));
}

LlamaModel::LlamaModel(const LlamaConfig& config) : Sequential("llama_model"), context_(config.context) {
  embed_tokens_ = &add<Embedding>("embed_tokens", config.vocab_size, config.width, kWeightStd);
  for (std::int64_t i = 0; i < config.layers; ++i) add<LlamaBlock>("layers." + std::to_string(i), config);
  add<RmsNorm>("norm", config.width, config.rms_eps);
}

Tensors LlamaModel::do_forward(Context& context, Tensors xs, Record* record) {
  expect_inputs(*this, xs, 1);
  expect_in_context(context.cache ? context.cache->longest() : xs[0].shape().back(), context_);
  return Sequential::do_forward(context, std::move(xs), record);
}

Llama::Llama(const LlamaConfig& config) : LanguageModel("llama"), config_(config) {
  config_.validate();
  auto& model = add_body<LlamaModel>("model", config_);
  if (config_.tie_embeddings) {
    set_head("lm_head", model.embed_tokens().weight());
  } else {
    set_head("lm_head", config_.vocab_size, config_.width, kWeightStd);
  }
}

}  // namespace mica::nn
