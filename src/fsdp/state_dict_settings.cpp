// SPDX-License-Identifier: Apache-2.0
#include "mica/fsdp/state_dict_settings.hpp"

#include "mica/fsdp/unit_tree.hpp"

namespace mica::fsdp {
namespace {

/// The units' common setting.
StateDictSettings common_settings(const std::vector<Unit*>& units) {
  require<ConfigError>(!units.empty(), "state dict settings belong to units, and there is no unit below this module");
  static_cast<void>(roots_of(units));  // this counts as a use
  const StateDictSettings settings = units.front()->state_dict_settings();
  for (const Unit* unit : units) {
    require<ConfigError>(unit->state_dict_settings() == settings,
                         "units {} and {} have different state dict settings ({} and {}): set them on a module around both",
                         units.front()->name(), unit->name(), state_dict_kind_name(settings.kind),
                         state_dict_kind_name(unit->state_dict_settings().kind));
  }
  return settings;
}

}  // namespace

std::string_view state_dict_kind_name(StateDictKind kind) {
  switch (kind) {
    case StateDictKind::full:
      return "full";
    case StateDictKind::sharded:
      return "sharded";
    case StateDictKind::local:
      return "local";
  }
  return "?";
}

StateDictSettings StateDictSettings::of(StateDictKind kind) {
  switch (kind) {
    case StateDictKind::full:
      break;
    case StateDictKind::sharded:
      return {kind, ShardedStateDictConfig{}, ShardedOptimStateDictConfig{}};
    case StateDictKind::local:
      return {kind, LocalStateDictConfig{}, LocalOptimStateDictConfig{}};
  }
  return {};
}

StateDictSettings set_state_dict_settings(nn::Module& module, const StateDictSettings& settings) {
  const auto kind = static_cast<std::size_t>(settings.kind);
  const auto check = [&](std::size_t index, const char* whose) {
    require<ConfigError>(index == kind, "the {} config is one of {} state dicts, the kind is {}: give configs of the kind", whose,
                         state_dict_kind_name(static_cast<StateDictKind>(index)), state_dict_kind_name(settings.kind));
  };
  check(settings.model.index(), "model");
  check(settings.optim.index(), "optimizer");
  const std::vector<Unit*> units = units_of(module);
  const StateDictSettings old = common_settings(units);
  for (Unit* unit : units) unit->set_state_dict_settings(settings);
  return old;
}

StateDictSettings state_dict_settings(nn::Module& module) { return common_settings(units_of(module)); }

StateDictSettingsScope::~StateDictSettingsScope() {
  // Unit by unit, so that settings made inside the scope are undone even if they differ between units.
  for (Unit* unit : units_of(module_)) unit->set_state_dict_settings(old_);
}

}  // namespace mica::fsdp
