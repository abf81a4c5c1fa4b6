// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "mica/nn/language_model.hpp"

namespace mica::nn {

struct MlpConfig {
  std::int64_t layers = 2;
  std::int64_t width = 64;
  std::int64_t intermediate_size = 256;
  std::int64_t vocab_size = 256;
};

/// The smallest language model: predicts the next token from the current one only. Embedding, `layers` blocks x +
/// down(gelu(up(norm(x)))) of type "mlp_block", norm, head. Names: "embed.weight", "blocks.0.up.weight", "head.weight".
class Mlp final : public LanguageModel {
 public:
  /// @throws ConfigError
  explicit Mlp(const MlpConfig& config);
};

}  // namespace mica::nn
