// SPDX-License-Identifier: Apache-2.0
#include "mica/fsdp/unit_tree.hpp"

#include <algorithm>
#include <unordered_set>

namespace mica::fsdp {

std::vector<Unit*> units_of(nn::Module& module, bool recurse) {
  std::vector<Unit*> units;
  const auto add = [&](const std::string&, nn::Module& each) {
    if (auto* unit = dynamic_cast<Unit*>(each.hooks())) units.push_back(unit);
  };
  if (recurse) {
    module.for_each_module(add);
  } else {
    add("", module);
  }
  return units;
}

std::vector<Root*> roots_of(const std::vector<Unit*>& units) {
  std::vector<Root*> roots;
  for (Unit* unit : units) {
    if (std::ranges::find(roots, &unit->root()) == roots.end()) roots.push_back(&unit->root());
  }
  return roots;
}

void require_one_mesh(const Root& root, std::string_view what) {
  for (const Unit* unit : root.units()) {
    require<ConfigError>(&unit->device_mesh() == &root.device_mesh(),
                         "{} needs all units on one mesh, but unit {} is on a mesh of {} x {} (replicas x shards) and the root on "
                         "one of {} x {}: shard all units on one DeviceMesh",
                         what, unit->name(), unit->device_mesh().geometry().replicas, unit->device_mesh().geometry().shard_size,
                         root.device_mesh().geometry().replicas, root.device_mesh().geometry().shard_size);
  }
}

void check_all_assigned(nn::Module& module) {
  std::unordered_set<const nn::Parameter*> assigned;
  for (const Root* root : roots_of(module)) {
    for (const UnitParameter& p : root->ignored_parameters()) assigned.insert(p.parameter);
  }
  module.for_each_parameter([&](const std::string& full_name, nn::Parameter& parameter) {
    require<ConfigError>(parameter.holder || assigned.contains(&parameter),
                         "parameter {} {} is neither in a unit nor ignored: shard a module around it, or add it to the "
                         "ignored parameters",
                         full_name, parameter.shape.to_string());
  });
}

}  // namespace mica::fsdp
