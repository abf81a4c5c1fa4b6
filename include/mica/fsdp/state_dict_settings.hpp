// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>
#include <variant>

#include "mica/nn/module.hpp"

namespace mica::fsdp {

/// What state_dict() and load_state_dict() work on (docs/parity.md E2).
enum class StateDictKind : std::uint8_t {
  full,     ///< whole tensors under the names of the unwrapped model
  sharded,  ///< the same names; each rank holds rows [rank * ceil(d0 / S), ...) of each parameter
  local,    ///< one key per unit: this rank's shard as it is stored
};
[[nodiscard]] std::string_view state_dict_kind_name(StateDictKind kind);

struct FullStateDictConfig {
  bool offload_to_cpu = false;  ///< host memory; the device holds one unit at a time
  bool rank0_only = false;      ///< empty on other ranks
  friend bool operator==(const FullStateDictConfig&, const FullStateDictConfig&) = default;
};
struct ShardedStateDictConfig {
  bool offload_to_cpu = false;
  friend bool operator==(const ShardedStateDictConfig&, const ShardedStateDictConfig&) = default;
};
struct LocalStateDictConfig {
  bool offload_to_cpu = false;
  friend bool operator==(const LocalStateDictConfig&, const LocalStateDictConfig&) = default;
};
/// In the order of StateDictKind.
using StateDictConfig = std::variant<FullStateDictConfig, ShardedStateDictConfig, LocalStateDictConfig>;

struct FullOptimStateDictConfig {
  bool rank0_only = true;
  friend bool operator==(const FullOptimStateDictConfig&, const FullOptimStateDictConfig&) = default;
};
struct ShardedOptimStateDictConfig {
  friend bool operator==(const ShardedOptimStateDictConfig&, const ShardedOptimStateDictConfig&) = default;
};
struct LocalOptimStateDictConfig {
  friend bool operator==(const LocalOptimStateDictConfig&, const LocalOptimStateDictConfig&) = default;
};
/// In the order of StateDictKind; for optim::optim_state_dict(). Optimizer state dicts are in host memory.
using OptimStateDictConfig = std::variant<FullOptimStateDictConfig, ShardedOptimStateDictConfig, LocalOptimStateDictConfig>;

/// Kind and configs of the model's and the optimizer's state dicts. Every unit has one.
struct StateDictSettings {
  StateDictKind kind = StateDictKind::full;
  StateDictConfig model = FullStateDictConfig{};
  OptimStateDictConfig optim = FullOptimStateDictConfig{};

  /// A kind with its default configs.
  [[nodiscard]] static StateDictSettings of(StateDictKind kind);
  friend bool operator==(const StateDictSettings&, const StateDictSettings&) = default;
};

/// Sets them for all units below the module. @returns what they had.
/// @throws ConfigError if a config is not of the kind, there is no unit, or the units' settings differ; nothing changes then.
StateDictSettings set_state_dict_settings(nn::Module& module, const StateDictSettings& settings);
/// @throws as above.
[[nodiscard]] StateDictSettings state_dict_settings(nn::Module& module);

/// Sets them for a scope and restores the previous ones at its end, also after an exception.
class StateDictSettingsScope {
 public:
  StateDictSettingsScope(nn::Module& module, const StateDictSettings& settings)
      : module_(module), old_(set_state_dict_settings(module, settings)) {}
  ~StateDictSettingsScope();
  StateDictSettingsScope(const StateDictSettingsScope&) = delete;
  StateDictSettingsScope& operator=(const StateDictSettingsScope&) = delete;

 private:
  nn::Module& module_;
  StateDictSettings old_;
};

}  // namespace mica::fsdp
