// How a Root takes hold of the units below it, and how it prints them.
#include <algorithm>
#include <unordered_map>

#include <fmt/format.h>

#include "mica/fsdp/root.hpp"

namespace mica::fsdp {
namespace {

/// The units around a module, outermost first.
using UnitChain = std::vector<Unit*>;

/// The innermost unit that is around every one of these modules.
Unit* innermost_common_unit(const std::vector<const UnitChain*>& chains) {
  std::size_t depth = chains.front()->size();
  for (const UnitChain* chain : chains) {
    depth = std::min(depth, static_cast<std::size_t>(std::ranges::mismatch(*chain, *chains.front()).in1 - chain->begin()));
  }
  return (*chains.front())[depth - 1];
}

/// Buffers that a limiter keeps back: see [Note: rate limiter].
std::size_t num_held(const DeviceMesh& device_mesh) { return device_mesh.streams().mode == StreamMode::inlined ? 0 : 1; }

}  // namespace

Root::Root(Unit& unit)
    : unit_(unit),
      buffers_(unit.device_mesh()),
      param_limiter_(num_held(unit.device_mesh()), unit.options().limit_all_gathers),
      grad_limiter_(num_held(unit.device_mesh()), unit.options().limit_all_gathers),
      order_check_(unit.device_mesh(), units_, unit.device_mesh().geometry().world_size > 1) {
  std::unordered_map<const nn::Module*, UnitChain> chains;
  unit.module().for_each_module([&](const std::string& name, nn::Module& module) {
    auto* nested = dynamic_cast<Unit*>(module.hooks());
    if (!nested) return;
    require<ConfigError>(!nested->root_ || nested == &unit,
                         "unit {} has been used as a root of its own and cannot be nested in {} any more: shard the "
                         "outer module before the first forward",
                         name, unit.module().type_name());
    nested->root_ = this;
    nested->name_ = name.empty() ? "root" : name;
    units_.push_back(nested);
    module.for_each_module([&](const std::string&, nn::Module& inside) { chains[&inside].push_back(nested); });
  });
  const auto units_around = [&](const nn::Module& module) -> const UnitChain& { return chains.at(&module); };
  assign_parameters(units_around);
  assign_buffers(units_around);
}

// [Note: shared parameters]
// A parameter that several modules use (a tied head) must be gathered whenever one of them runs, so it belongs to the
// innermost unit around all of them. Policies may wrap its owner alone; by hand that would be a surprise and is refused.
void Root::assign_parameters(const UnitsAround& units_around) {
  std::unordered_map<const nn::Parameter*, std::vector<std::pair<std::string, const UnitChain*>>> users;
  unit_.module().for_each_module([&](const std::string& name, nn::Module& module) {
    for (const auto& p : module.own_parameters()) users[p.get()].emplace_back(name, &units_around(module));
    for (const nn::Parameter* p : module.shared_parameters()) users[p].emplace_back(name, &units_around(module));
  });
  std::unordered_map<Unit*, std::vector<UnitParameter>> parameters;
  unit_.module().for_each_parameter([&](const std::string& full_name, nn::Parameter& parameter) {
    std::vector<const UnitChain*> chains;
    for (const auto& [name, chain] : users.at(&parameter)) chains.push_back(chain);
    Unit* owner = innermost_common_unit(chains);
    for (const auto& [name, chain] : users.at(&parameter)) {
      const auto split = std::find_if(std::ranges::find(*chain, owner) + 1, chain->end(),
                                      [](const Unit* u) { return !u->options().wrapped_by_policy; });
      require<ConfigError>(split == chain->end(),
                           "parameter {} is shared by {} and {}; wrapping {} by hand would split it: wrap a module that "
                           "holds all of its users, or neither",
                           full_name, users.at(&parameter).front().first, users.at(&parameter).back().first,
                           split == chain->end() ? name : (*split)->name());
    }
    parameters[owner].push_back({full_name, &parameter});
  });
  for (Unit* each : units_) {
    const auto mine = parameters.find(each);
    if (mine == parameters.end()) continue;
    each->storage_ = std::make_unique<UnitStorage>(each->name_, std::move(mine->second), each->device_mesh_, each->options_);
  }
}

void Root::assign_buffers(const UnitsAround& units_around) {
  unit_.module().for_each_module([&](const std::string& name, nn::Module& module) {
    for (const auto& buffer : module.own_buffers()) {
      buffers_.add(name.empty() ? buffer->name : name + "." + buffer->name, *buffer,
                   units_around(module).back()->options().mixed_precision.buffer_dtype);
    }
  });
}

std::string Root::describe() const {
  std::string text = fmt::format("{:<28} {:>14} {:>14} {:>8}  {:<18} {:<6} {}\n", "unit", "parameters", "per rank", "padding",
                                 "strategy", "param", "reduce");
  for (const Unit* each : units_) {
    const UnitStorage* storage = each->storage_.get();
    if (!storage) {
      text += fmt::format("{:<28} {:>14}\n", each->name_, "none");
      continue;
    }
    const ShardLayout& layout = storage->layout();
    text += fmt::format("{:<28} {:>14} {:>14} {:>8}  {:<18} {:<6} {}\n", each->name_, layout.param_numel(),
                        layout.shard_numel(), layout.gathered_numel() - layout.param_numel(),
                        strategy_name(each->options_.strategy), dtype_name(each->options_.param_dtype()),
                        dtype_name(each->options_.reduce_dtype()));
  }
  return text;
}

}  // namespace mica::fsdp
