// SPDX-License-Identifier: Apache-2.0
#include "model_arrays.hpp"

#include <unordered_map>

#include "mica/fsdp/unit_tree.hpp"

namespace mica::fsdp {

StateArrays model_arrays(nn::Module& module, std::string_view action) {
  StateArrays found;
  const std::vector<Unit*> units = units_of(module);
  require<ConfigError>(!units.empty(), "module of type {} has no unit: shard it before its state dict is {}", module.type_name(), action);
  found.roots = roots_of(units);
  for (const Root* root : found.roots) {
    require(root->state() == TrainingState::idle, "a state dict is {} while the root is {}: do it between passes", action,
            training_state_name(root->state()));
  }
  struct Place {
    Unit* unit;
    std::size_t index;
  };
  std::unordered_map<const nn::Parameter*, Place> places;
  for (Unit* unit : units) {
    if (!unit->storage()) continue;
    require(unit->storage()->is_initialized(), "the state dict of unit {} is {} before it has values: call initialize() first",
            unit->name(), action);
    found.units.push_back(unit);
    for (std::size_t i = 0; i < unit->storage()->parameters().size(); ++i) {
      places[unit->storage()->parameters()[i].parameter] = {unit, i};
    }
  }
  module.for_each_parameter([&](const std::string& key, nn::Parameter& parameter) {
    const auto place = places.find(&parameter);
    if (place != places.end()) {
      Unit* unit = place->second.unit;
      found.all.push_back({key, parameter.shape, unit->storage()->master().dtype, unit, place->second.index});
      return;
    }
    require<ConfigError>(parameter.data || parameter.shape.numel() == 0,
                         "parameter {} {} has no unit below this module, and no data of its own: take the state dict of a "
                         "module that holds the whole unit, and let ignored parameters keep their data",
                         key, parameter.shape.to_string());
    found.all.push_back({key, parameter.shape, parameter.data.dtype, nullptr, 0, parameter.data});
  });
  module.for_each_buffer([&](const std::string& key, nn::ModuleBuffer& buffer) {
    require<ConfigError>(buffer.data || buffer.shape.numel() == 0, "buffer {} {} has no data", key, buffer.shape.to_string());
    found.all.push_back({key, buffer.shape, buffer.dtype, nullptr, 0, buffer.data});
  });
  return found;
}

std::string local_key(nn::Module& module, const Unit& unit) {
  std::string prefix;
  module.for_each_module([&](const std::string& name, nn::Module& each) {
    if (&each == &unit.module()) prefix = name;
  });
  return prefix.empty() ? "flat_param" : prefix + ".flat_param";
}

std::int64_t unpadded_numel(Unit& unit) {
  const std::span<const Piece> pieces = unit.root().pieces_of(unit);
  return pieces.empty() ? 0 : pieces.back().offset + pieces.back().numel();
}

void require_sharded(const std::vector<Unit*>& units, std::string_view what) {
  for (const Unit* unit : units) {
    require(unit->storage()->shard_size() > 1,
            "{} needs sharded units, and unit {} is not sharded: use the full kind, or load_state_dict_pieces()", what, unit->name());
  }
}

}  // namespace mica::fsdp
