// SPDX-License-Identifier: Apache-2.0
#include "idle_keys.hpp"

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "mica/core/error.hpp"

#include "config_keys.hpp"

namespace mica::train {
namespace {

/// A choice and the keys that have no effect with it.
struct IdleKeys {
  bool is_chosen;
  std::string choice;
  std::vector<std::string_view> keys;
};

std::vector<IdleKeys> idle_keys(const Config& config) {
  const std::string& type = config.model.type;
  const std::string& optimizer = config.optim.type;
  const bool is_scaled = config.fsdp.param_dtype == "fp16" || config.fsdp.reduce_dtype == "fp16";
  return {
      {type != "llama",
       "model.type = " + type,
       {"model.kv_heads", "model.head_dim", "model.rms_eps", "model.rope_theta", "model.rope_scaling"}},
      {type != "llama", "model.type = " + type, {kKeysOfRopeScaling.begin(), kKeysOfRopeScaling.end()}},
      {config.model.rope_scaling == "none", "model.rope_scaling = none", {kKeysOfRopeScaling.begin(), kKeysOfRopeScaling.end()}},
      {type != "gpt2", "model.type = " + type, {"model.dropout"}},
      {type == "mlp", "model.type = mlp", {"model.heads", "model.context", "model.tie_embeddings"}},
      {config.fsdp.wrap != "size", "fsdp.wrap = " + config.fsdp.wrap, {"fsdp.min_numel"}},
      {config.fsdp.sharding == "flat", "fsdp.sharding = flat", {"fsdp.shard_dims"}},
      {optimizer == "sgd", "optim.type = sgd", {"optim.beta1", "optim.beta2", "optim.eps"}},
      {optimizer != "sgd", "optim.type = " + optimizer, {"optim.momentum", "optim.nesterov"}},
      {!is_scaled, "dtypes other than fp16", {"optim.loss_scale", "optim.loss_scale_interval"}},
      {config.optim.schedule == "constant", "optim.schedule = constant", {"optim.min_lr"}},
      {config.train.on_bad_step == "none", "train.on_bad_step = none", {"train.grad_norm_spike"}},
  };
}

}  // namespace

void refuse_idle_keys(const Config& config) {
  static const Config defaults;
  for (const IdleKeys& idle : idle_keys(config)) {
    if (!idle.is_chosen) continue;
    for (const std::string_view name : idle.keys) {
      const auto key = std::ranges::find(config_keys(), name, &ConfigKey::name);
      const std::string value = key->get(config), by_default = key->get(defaults);
      require<ConfigError>(!config.set_by_user.contains(key->name) || value == by_default, "{} = {} has no effect with {}: leave it {}",
                           name, value, idle.choice, by_default.empty() ? "empty" : by_default);
    }
  }
}

}  // namespace mica::train
