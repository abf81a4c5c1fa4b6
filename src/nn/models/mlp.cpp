// SPDX-License-Identifier: Apache-2.0
#include "mica/nn/models/mlp.hpp"

#include <string>

#include "mica/nn/activation.hpp"
#include "mica/nn/layer_norm.hpp"
#include "mica/nn/linear.hpp"
#include "mica/nn/sequential.hpp"

#include "expect_positive.hpp"

namespace mica::nn {

Mlp::Mlp(const MlpConfig& config) : LanguageModel("mlp") {
  expect_positive({{"width", config.width}, {"intermediate_size", config.intermediate_size}, {"vocab_size", config.vocab_size}});
  add_body<Embedding>("embed", config.vocab_size, config.width);
  for (std::int64_t i = 0; i < config.layers; ++i) {
    auto& block = add_body<Residual>("blocks." + std::to_string(i), "mlp_block");
    block.add<LayerNorm>("norm", config.width);
    block.add<Linear>("up", config.width, config.intermediate_size);
    block.add<Gelu>("act");
    block.add<Linear>("down", config.intermediate_size, config.width);
  }
  add_body<LayerNorm>("norm", config.width);
  set_head("head", config.vocab_size, config.width);
}

}  // namespace mica::nn
