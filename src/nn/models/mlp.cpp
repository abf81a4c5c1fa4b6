#include "mica/nn/models/mlp.hpp"

#include <cmath>

#include "mica/nn/gelu.hpp"
#include "mica/nn/linear.hpp"
#include "mica/nn/sequential.hpp"

namespace mica::nn {
namespace {
constexpr double kWeightStd = 0.02;

void expect_positive(const char* key, std::int64_t value) {
  require<ConfigError>(value > 0, "model.{} is {}, expected a positive number", key, value);
}

const MlpConfig& validated(const MlpConfig& config) {
  config.validate();
  return config;
}
}  // namespace

void MlpConfig::validate() const {
  require<ConfigError>(layers >= 0, "model.layers is {}, expected 0 or more", layers);
  expect_positive("width", width);
  expect_positive("hidden", hidden);
  expect_positive("vocab_size", vocab_size);
}

Mlp::Mlp(const MlpConfig& config) : LanguageModel("mlp"), config_(validated(config)) {
  auto& embed = add_body<Embedding>("embed", config_.vocab_size, config_.width, kWeightStd);
  const double proj_std = kWeightStd / std::sqrt(static_cast<double>(config_.layers));
  for (std::int64_t i = 0; i < config_.layers; ++i) {
    auto& block = add_body<Residual>("blocks." + std::to_string(i), "mlp_block");
    block.add<Linear>("fc", config_.width, config_.hidden);
    block.add<Gelu>("act");
    block.add<Linear>("proj", config_.hidden, config_.width, LinearOptions{.weight_std = proj_std});
  }
  if (config_.tie_embeddings) {
    set_head("head", embed.weight());
  } else {
    set_head("head", config_.vocab_size, config_.width, kWeightStd);
  }
}

}  // namespace mica::nn
