// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "mica/nn/grouped_query_attention.hpp"
#include "mica/nn/language_model.hpp"
#include "mica/nn/sequential.hpp"

namespace mica::nn {

struct LlamaConfig {
  std::int64_t layers = 16;
  std::int64_t heads = 32;
  std::int64_t kv_heads = 0;  ///< divides heads; 0: as many as heads
  std::int64_t head_dim = 0;  ///< even; 0: width / heads
  std::int64_t width = 2048;
  std::int64_t intermediate_size = 8192;  ///< hidden size inside the MLP
  std::int64_t context = 8192;            ///< longest sequence
  std::int64_t vocab_size = 128256;       ///< exact
  bool tie_embeddings = false;            ///< the head uses model.embed_tokens.weight
  double rms_eps = 1e-5;
  RotaryOptions rotary;

  [[nodiscard]] std::int64_t num_kv_heads() const { return kv_heads == 0 ? heads : kv_heads; }
  [[nodiscard]] std::int64_t head_size() const { return head_dim == 0 ? width / heads : head_dim; }
  /// @throws ConfigError naming the key, its value and what is expected.
  void validate() const;
};

/// x + self_attn(input_layernorm(x)), then x + mlp(post_attention_layernorm(x)); type "llama_block". [B, T, C] -> [B, T, C].
class LlamaBlock final : public Module {
 public:
  explicit LlamaBlock(const LlamaConfig& config);

 private:
  Tensors do_forward(Context& context, Tensors xs, Record* record) override;
  Tensors do_backward(Context& context, Record& record, Tensors dys) override;

  std::vector<Module*> attention_branch_;  // input_layernorm, self_attn
  std::vector<Module*> mlp_branch_;        // post_attention_layernorm, mlp
};

/// Embedding, blocks and the last norm: ids i32 [B, T] -> hidden [B, T, C].
class LlamaModel final : public Sequential {
 public:
  explicit LlamaModel(const LlamaConfig& config);
  [[nodiscard]] Embedding& embed_tokens() { return *embed_tokens_; }

 private:
  Tensors do_forward(Context& context, Tensors xs, Record* record) override;

  std::int64_t context_;
  Embedding* embed_tokens_ = nullptr;
};

/// Llama 2 and 3 with the names of Hugging Face's LlamaForCausalLM ("model.layers.0.self_attn.q_proj.weight"), every
/// weight [out, in]. Inputs and outputs: LanguageModel. Initial values as Hugging Face's: matrices and embeddings
/// normal 0.02 (residual projections too), norms 1.
class Llama final : public LanguageModel {
 public:
  /// @throws ConfigError
  explicit Llama(const LlamaConfig& config);
  [[nodiscard]] const LlamaConfig& config() const { return config_; }

 private:
  LlamaConfig config_;
};

}  // namespace mica::nn
