// How a Root takes hold of the units below it, and what can be listed of them.
#include "mica/fsdp/unit_tree.hpp"

#include <unordered_set>

#include <fmt/format.h>

#include "mica/device/device_memory.hpp"

#include "unit_claim.hpp"

namespace mica::fsdp {
namespace {

/// Buffers that a limiter keeps back: see [Note: rate limiter].
std::size_t num_held(const DeviceMesh& device_mesh) { return device_mesh.streams().mode == StreamMode::inlined ? 0 : 1; }

}  // namespace

Root::Root(Unit& unit)
    : unit_(unit),
      options_(unit.options().root.value_or(RootOptions{})),
      buffers_(unit.device_mesh()),
      param_limiter_(num_held(unit.device_mesh()), options_.limit_all_gathers),
      grad_limiter_(num_held(unit.device_mesh()), options_.limit_all_gathers),
      order_check_(unit.device_mesh(), units_, options_.use_orig_params) {
  UnitClaim claim(unit, options_);
  std::vector<std::unique_ptr<UnitStorage>> storages;
  for (UnitClaim::Member& member : claim.members) {
    storages.push_back(member.parameters.empty()
                           ? nullptr
                           : std::make_unique<UnitStorage>(member.name, std::move(member.parameters),
                                                           member.unit->device_mesh_, member.unit->options_, options_));
  }
  for (const UnitClaim::Buffer& each : claim.buffers) buffers_.add(each.full_name, *each.buffer, each.dtype);
  // Nothing can fail any more.
  for (std::size_t i = 0; i < claim.members.size(); ++i) {
    Unit& each = *claim.members[i].unit;
    each.root_ = this;
    each.name_ = claim.members[i].name;
    each.storage_ = std::move(storages[i]);
    if (each.storage_) {
      for (const UnitParameter& p : each.storage_->parameters()) p.parameter->holder = &each;
    }
    units_.push_back(&each);
  }
  ignored_parameters_ = std::move(claim.ignored_parameters);
  ignored_buffers_ = std::move(claim.ignored_buffers);
  ignored_modules_ = std::move(claim.ignored_modules);
  warn_about_strategy();
}

void Root::warn_about_strategy() const {
  if (device_mesh().mesh().rank() != 0) return;  // it is the same for all
  const Logger& logger = device_mesh().logger();
  for (const Unit* each : units_) {
    if (each->asked_strategy() != each->options().strategy) {
      logger.warn("strategy {} of unit {} acts as no_shard: the shard axis has one rank", strategy_name(each->asked_strategy()),
                  each->name());
      return;
    }
  }
  for (const Unit* each : units_) {
    if (is_hybrid(each->options().strategy) && each->device_mesh().geometry().replicas == 1) {
      logger.warn("strategy {} of unit {} has no replicas: the replicate axis of the mesh has one rank",
                  strategy_name(each->options().strategy), each->name());
      return;
    }
  }
}

void Root::check_ignored_have_data() const {
  for (const UnitParameter& p : ignored_parameters_) {
    require(p.parameter->data || p.parameter->shape.numel() == 0,
            "the ignored parameter {} {} has no data: whoever ignores a parameter holds its storage and sets "
            "Parameter::data before the first forward",
            p.full_name, p.parameter->shape.to_string());
  }
  for (const ModuleBufferName& b : ignored_buffers_) {
    require(b.buffer->data || b.buffer->shape.numel() == 0,
            "the buffer {} {} of an ignored module has no data: whoever ignores a module holds its buffers' storage "
            "and sets "
            "ModuleBuffer::data before the first forward",
            b.full_name, b.buffer->shape.to_string());
  }
}

// Gradients of units are storage of their own; whoever ignores a parameter brings its gradient.
void Root::check_ignored_grads() const {
  const Pool& pool = device_mesh().pool();
  for (const UnitParameter& p : ignored_parameters_) {
    const TensorView& grad = p.parameter->grad;
    if (!grad) continue;
    require(grad.shape == p.parameter->shape,
            "gradients of the ignored parameter {} {} would accumulate into one of shape {}: set Parameter::grad to an "
            "array of the parameter's shape",
            p.full_name, p.parameter->shape.to_string(), grad.shape.to_string());
    const DeviceKind of_grad = device_of(pool, grad.data), of_data = device_of(pool, p.parameter->data.data);
    require(of_grad == of_data,
            "gradients of the ignored parameter {}, which is on {}, would accumulate into one on {}: set Parameter::grad "
            "to an array on the parameter's device",
            p.full_name, device_kind_name(of_data), device_kind_name(of_grad));
  }
}

std::vector<Unit*> units_of(nn::Module& module) {
  std::vector<Unit*> units;
  module.for_each_module([&](const std::string&, nn::Module& each) {
    if (auto* unit = dynamic_cast<Unit*>(each.hooks())) units.push_back(unit);
  });
  return units;
}

std::vector<Root*> roots_of(nn::Module& module) {
  std::vector<Root*> roots;
  std::unordered_set<const Root*> seen;
  for (Unit* unit : units_of(module)) {
    Root& root = unit->root();
    if (seen.insert(&root).second) roots.push_back(&root);
  }
  return roots;
}

void require_one_mesh(const Root& root, std::string_view what) {
  for (const Unit* unit : root.units()) {
    require<ConfigError>(
        &unit->device_mesh() == &root.device_mesh(),
        "{} knows one grid of ranks, but unit {} is on a grid of {} x {} (replicas x shards) and the root on "
        "another, of {} x {}: shard all units on one DeviceMesh",
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
