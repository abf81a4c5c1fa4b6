// SPDX-License-Identifier: Apache-2.0
#include "idle_keys.hpp"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "mica/core/error.hpp"

#include "config_keys.hpp"

namespace mica::train {
namespace {

struct IdleKeys {
  std::string choice;  ///< "model.type = mlp"
  std::vector<std::string_view> keys;
};

/// The config's choices that leave keys without an effect.
std::vector<IdleKeys> idle_keys(const Config& config) {
  std::vector<IdleKeys> found;
  const auto add = [&](bool is_chosen, const std::string& choice, std::vector<std::string_view> keys) {
    if (is_chosen) found.push_back({choice, std::move(keys)});
  };
  const std::vector<std::string_view> of_scaling{"model.rope_factor", "model.rope_low_freq_factor", "model.rope_high_freq_factor",
                                                 "model.rope_original_context"};
  const std::string& type = config.model.type;
  const std::string& optimizer = config.optim.type;
  const bool is_scaled = config.fsdp.param_dtype == "fp16" || config.fsdp.reduce_dtype == "fp16";
  add(type != "llama", "model.type = " + type,
      {"model.kv_heads", "model.head_dim", "model.rms_eps", "model.rope_theta", "model.rope_scaling"});
  add(type != "llama", "model.type = " + type, of_scaling);
  add(config.model.rope_scaling == "none", "model.rope_scaling = none", of_scaling);
  add(type != "gpt2", "model.type = " + type, {"model.dropout"});
  add(type == "mlp", "model.type = mlp", {"model.heads", "model.context", "model.tie_embeddings"});
  add(config.fsdp.wrap != "size", "fsdp.wrap = " + config.fsdp.wrap, {"fsdp.min_numel"});
  add(config.fsdp.strategy == "no_shard", "fsdp.strategy = no_shard", {"fsdp.sharding", "fsdp.shard_dims"});
  add(config.fsdp.sharding == "flat", "fsdp.sharding = flat", {"fsdp.shard_dims"});
  add(optimizer == "sgd", "optim.type = sgd", {"optim.beta1", "optim.beta2", "optim.eps"});
  add(optimizer != "sgd", "optim.type = " + optimizer, {"optim.momentum", "optim.nesterov"});
  add(!is_scaled, "dtypes other than fp16", {"optim.loss_scale", "optim.loss_scale_interval"});
  add(config.optim.schedule == "constant", "optim.schedule = constant", {"optim.min_lr"});
  add(config.train.on_bad_step == "none", "train.on_bad_step = none", {"train.grad_norm_spike"});
  return found;
}

std::string default_of(const ConfigKey& key) {
  static const Config defaults;
  return key.get(defaults);
}

/// By the user, to another value than its default.
bool is_set(const Config& config, const ConfigKey& key) {
  return config.set_by_user.contains(key.name) && key.get(config) != default_of(key);
}

}  // namespace

bool is_idle(const Config& config, std::string_view key) {
  return std::ranges::any_of(idle_keys(config), [&](const IdleKeys& idle) { return std::ranges::find(idle.keys, key) != idle.keys.end(); });
}

std::vector<std::string> reset_idle_keys(Config& config) {
  std::vector<std::string> flags;
  for (const ConfigKey& key : config_keys()) {
    if (!is_idle(config, key.name) || !is_set(config, key)) continue;
    invariant(key.set(config, default_of(key)), "a key takes its default");
    flags.push_back(fmt::format("--{}={}", key.name, default_of(key)));
  }
  return flags;
}

void refuse_idle_keys(const Config& config) {
  for (const IdleKeys& idle : idle_keys(config)) {
    for (const std::string_view name : idle.keys) {
      const auto key = std::ranges::find(config_keys(), name, &ConfigKey::name);
      const std::string by_default = default_of(*key);
      require<ConfigError>(!is_set(config, *key), "{} = {} has no effect with {}: leave it {}", name, key->get(config), idle.choice,
                           by_default.empty() ? "empty" : by_default);
    }
  }
}

}  // namespace mica::train
