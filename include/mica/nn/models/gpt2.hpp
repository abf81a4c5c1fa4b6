// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "mica/nn/attention.hpp"
#include "mica/nn/language_model.hpp"
#include "mica/nn/layer_norm.hpp"
#include "mica/nn/sequential.hpp"

namespace mica::nn {

struct Gpt2Config {
  std::int64_t layers = 12;
  std::int64_t heads = 12;
  std::int64_t width = 768;         ///< divisible by heads
  std::int64_t context = 1024;      ///< longest sequence
  std::int64_t vocab_size = 50257;  ///< exact
  bool tie_embeddings = true;       ///< the head uses transformer.wte.weight
  double dropout = 0;               ///< after the embedding, the attention and the MLP, in training only

  /// @throws ConfigError naming the key, its value and what is expected.
  void validate() const;
};

/// x + attn(ln_1(x)), then x + mlp(ln_2(x)); type "gpt2_block". [B, T, C] -> [B, T, C].
/// Per token, 16*C activations are kept for backward: x, ln_1's output, qkv (3), the attention's y, x + attention, ln_2's
/// output, the GELU's input and output (4 each); 10*C under Recompute::cheap, which recomputes the outputs of both norms and of
/// the GELU.
class Gpt2Block final : public Module {
 public:
  /// @param full_name  "transformer.h.3": names the random streams of its dropouts.
  Gpt2Block(const Gpt2Config& config, const std::string& full_name);

 private:
  Tensors do_forward(Context& context, Tensors xs, Record* record) override;
  Tensors do_backward(Context& context, Record& record, Tensors dys) override;

  std::vector<Module*> attention_branch_;  // ln_1, attn
  std::vector<Module*> mlp_branch_;        // ln_2, mlp
};

/// Embeddings, blocks and the last norm: ids i32 [B, T] -> hidden [B, T, C]. Names as in Hugging Face's GPT-2.
class Gpt2Transformer final : public Module {
 public:
  explicit Gpt2Transformer(const Gpt2Config& config);
  [[nodiscard]] Embedding& wte() { return wte_; }

 private:
  Tensors do_forward(Context& context, Tensors xs, Record* record) override;
  Tensors do_backward(Context& context, Record& record, Tensors dys) override;

  Embedding& wte_;
  PositionEmbedding& wpe_;
  std::vector<Module*> body_;  // drop, h.0, h.1, ..., ln_f
};

/// GPT-2 with the names of Hugging Face's GPT2LMHeadModel ("transformer.h.0.attn.c_attn.weight"), every weight [out, in]
/// (Hugging Face stores the products of its blocks transposed). Inputs and outputs: LanguageModel. Initial values as GPT-2's:
/// normal 0.02; c_proj of attention and MLP 0.02 / sqrt(2 * layers); biases 0, norms 1. GPT-2 also applies dropout to attention
/// probabilities; Mica does not (they are never in memory at once).
class Gpt2 final : public LanguageModel {
 public:
  /// @throws ConfigError
  explicit Gpt2(const Gpt2Config& config);
  [[nodiscard]] const Gpt2Config& config() const { return config_; }

 private:
  Gpt2Config config_;
};

}  // namespace mica::nn
