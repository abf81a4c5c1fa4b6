// SPDX-License-Identifier: Apache-2.0
#include "mica/fsdp/fully_shard.hpp"

#include <algorithm>

#include "mica/core/error.hpp"

namespace mica::fsdp {

void check_strategy(Strategy strategy, const MeshGeometry& geometry) {
  if (strategy == Strategy::full_shard || strategy == Strategy::shard_grad_op || strategy == Strategy::shard_optim) {
    require<ConfigError>(geometry.shard_size == geometry.world_size,
                         "strategy {} shards over the whole world of {} ranks, but mesh.shard_size is {}: use "
                         "fsdp.strategy={} to shard over {} and replicate {} times, or mesh.shard_size=world",
                         strategy_name(strategy), geometry.world_size, geometry.shard_size,
                         strategy == Strategy::full_shard ? "hybrid_shard" : "hybrid_shard_zero2", geometry.shard_size, geometry.replicas);
  }
}

void check_wrappable(const nn::Module& module, const DeviceMesh& device_mesh, const Options& options) {
  if (module.hooks()) {
    const auto* unit = dynamic_cast<const Unit*>(module.hooks());
    throw ConfigError(
        fmt::format("module {} of type {} is a unit already and cannot be wrapped again", unit ? unit->name() : "", module.type_name()));
  }
  check_strategy(options.strategy, device_mesh.geometry());
  require<ConfigError>(
      options.reshard_after_forward_ranks == 0 || (options.reshard_after_forward_ranks > 0 && reshards_after_forward(options.strategy)),
      "a module of type {} is sharded with reshard_after_forward_ranks = {} and strategy {}: after forward "
      "only full_shard and hybrid_shard reshard, over 1 or more ranks; use one of these, or leave it 0",
      module.type_name(), options.reshard_after_forward_ranks, strategy_name(options.strategy));
  require<ConfigError>(options.shard_dims.empty() || options.sharding == Sharding::per_parameter,
                       "a module of type {} is sharded flat, but shard_dims has a dim for parameters like '{}': shard_dims needs "
                       "fsdp.sharding=per_parameter",
                       module.type_name(), options.shard_dims.empty() ? "" : options.shard_dims.front().pattern);
  require<ConfigError>(options.ignored_modules.empty() || options.ignored_parameters.empty(),
                       "a module of type {} is sharded with {} ignored modules and {} ignored parameters: give only one of the two",
                       module.type_name(), options.ignored_modules.size(), options.ignored_parameters.size());
  for (const nn::Module* ignored : options.ignored_modules) {
    require<ConfigError>(!ignored->hooks(),
                         "a module of type {} is a unit already and cannot be ignored by a unit of type {}: ignore the modules "
                         "in it, or do not shard it",
                         ignored->type_name(), module.type_name());
  }
}

Unit& fully_shard(nn::Module& module, DeviceMesh& device_mesh, const Options& options) {
  check_wrappable(module, device_mesh, options);
  if (!module.has_forward()) {
    device_mesh.logger().warn(
        "a module of type {} becomes a unit, but has no forward of its own: nothing will gather the "
        "parameters inside it; shard the modules in it instead",
        module.type_name());
  }
  if (std::ranges::find(options.ignored_modules, &module) != options.ignored_modules.end()) {
    device_mesh.logger().warn("a module of type {} is sharded and ignores itself: its unit holds no parameters", module.type_name());
  }
  auto unit = std::make_shared<Unit>(module, device_mesh, options);
  Unit& reference = *unit;
  module.set_hooks(std::move(unit));
  return reference;
}

namespace {

Root& root_for_no_sync(nn::Module& module) {
  Root& root = root_of(module);
  const Unit* first = root.units().front();
  require(&first->module() == &module,
          "no_sync was called on a unit of type {}, which is inside the root {}: the whole model's backward reduces gradients, "
          "so call it on the root module",
          module.type_name(), first->module().type_name());
  return root;
}

}  // namespace

NoSync::NoSync(nn::Module& root_module) : NoSync(root_for_no_sync(root_module)) {}

Root& root_of(nn::Module& module) {
  auto* unit = dynamic_cast<Unit*>(module.hooks());
  require(unit != nullptr, "module of type {} is not sharded: call fully_shard() on it first", module.type_name());
  return unit->root();
}

}  // namespace mica::fsdp
