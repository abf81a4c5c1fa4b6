#include "mica/fsdp/fully_shard.hpp"

#include "mica/core/error.hpp"

namespace mica::fsdp {

void check_strategy(Strategy strategy, const MeshGeometry& geometry) {
  if (strategy == Strategy::full_shard || strategy == Strategy::shard_grad_op || strategy == Strategy::shard_optim) {
    require<ConfigError>(geometry.shard_size == geometry.world_size,
                         "strategy {} shards over the whole world of {} ranks, but mesh.shard_size is {}: use "
                         "fsdp.strategy={} to shard over {} and replicate {} times, or mesh.shard_size=world",
                         strategy_name(strategy), geometry.world_size, geometry.shard_size,
                         strategy == Strategy::full_shard ? "hybrid_shard" : "hybrid_shard_zero2", geometry.shard_size,
                         geometry.replicas);
  }
}

Unit& fully_shard(nn::Module& module, DeviceMesh& device_mesh, const Options& options) {
  require<ConfigError>(module.hooks() == nullptr, "module of type {} is a unit already and cannot be wrapped again",
                       module.type_name());
  check_strategy(options.strategy, device_mesh.geometry());
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
          "no_sync is asked of a unit of type {}, which is inside the root {}: gradients are reduced by the whole model's "
          "backward, ask the root module",
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
