#pragma once

#include "mica/nn/language_model.hpp"

namespace mica::nn {

struct MlpConfig {
  std::int64_t layers = 2;
  std::int64_t width = 64;
  std::int64_t hidden = 256;
  std::int64_t vocab_size = 256;
  bool tie_embeddings = false;  ///< the head uses embed.weight

  /// @throws ConfigError naming the key, its value and what is expected.
  void validate() const;
};

/// A small model on the same token data as GPT-2: each token predicts the next one from itself alone.
///   embed [V, C] -> blocks.N: x + proj(gelu(fc(x))), type "mlp_block" -> head
/// Names: "embed.weight", "blocks.0.fc.weight", "blocks.0.fc.bias", "blocks.0.proj.weight", ..., "head.weight" unless
/// tied. Inputs and outputs: LanguageModel. Initial values: normal 0.02, proj 0.02 / sqrt(layers), biases 0.
class Mlp final : public LanguageModel {
 public:
  /// @throws ConfigError
  explicit Mlp(const MlpConfig& config);
  [[nodiscard]] const MlpConfig& config() const { return config_; }

 private:
  MlpConfig config_;
};

}  // namespace mica::nn
