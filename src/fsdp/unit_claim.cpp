// SPDX-License-Identifier: Apache-2.0
#include "unit_claim.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace mica::fsdp {
UnitClaim::UnitClaim(Unit& root, const RootOptions& options) : root_(root), options_(options) {
  find_units();
  find_users();
  find_ignored();
  assign_parameters();
  find_buffers();
  check_frozen();
  check_options();
  check_meshes();
}

void UnitClaim::find_units() {
  root_.module().for_each_module([&](const std::string& name, nn::Module& module) {
    auto* unit = dynamic_cast<Unit*>(module.hooks());
    if (!unit) return;
    const std::size_t index = members.size();
    require<ConfigError>(!unit->is_claimed(),
                         "unit {} has been used as a root of its own and cannot be nested in {} any more: shard the "
                         "outer module before the first forward, state dict or initialize()",
                         name, root_.module().type_name());
    members.push_back({unit, name.empty() ? "root" : name, {}});
    module.for_each_module([&](const std::string&, nn::Module& inside) { chains_[&inside].push_back(index); });
  });
}

void UnitClaim::find_users() {
  root_.module().for_each_module([&](const std::string& name, nn::Module& module) {
    for (const auto& parameter : module.own_parameters()) users_[parameter.get()].push_back({name, &module});
    for (const nn::Parameter* parameter : module.shared_parameters()) users_[parameter].push_back({name, &module});
  });
}

// A module belongs to the innermost unit around it, and that unit's options say whether it is ignored. A shared parameter is
// ignored if the unit of any of its users ignores it.
void UnitClaim::find_ignored() {
  for (const Member& member : members) ignored_of_.emplace_back(member.unit->options());
  for (const auto& [module, chain] : chains_) {
    if (ignored_of_[chain.back()].modules.contains(module)) ignored_modules.insert(module);
  }
  for (const auto& [parameter, users] : users_) {
    const bool is_ignored = std::ranges::any_of(
        users, [&, p = parameter](const User& user) { return ignored_of_[chain_of(user).back()].parameters.contains(p); });
    if (is_ignored) ignored_.insert(parameter);
  }
  check_ignored();
}

void UnitClaim::check_ignored() const {
  for (std::size_t i = 0; i < members.size(); ++i) {
    const Member& member = members[i];
    for (const nn::Module* module : member.unit->options().ignored_modules) {
      require<ConfigError>(!module->hooks() || module == &member.unit->module(),
                           "unit {} ignores a module of type {} that is a unit itself: ignore the modules in it, or do not "
                           "shard it",
                           member.name, module->type_name());
      require<ConfigError>(i != 0 || chains_.contains(module),
                           "the root unit ignores a module of type {} that is not inside the root module", module->type_name());
    }
    for (const nn::Parameter* parameter : ignored_of_[i].parameters) {
      const auto users = users_.find(parameter);
      require<ConfigError>(i != 0 || users != users_.end(),
                           "the root unit ignores the parameter '{}' {}, which no module inside the root module uses", parameter->name,
                           parameter->shape.to_string());
      if (users == users_.end() || ignored_.contains(parameter)) continue;
      for (const User& user : users->second) {
        const Chain& chain = chain_of(user);
        require<ConfigError>(std::ranges::find(chain, i) == chain.end(),
                             "unit {} ignores the parameter '{}' of {}, which belongs to unit {} inside it: give that unit "
                             "the same ignored modules or parameters",
                             member.name, parameter->name, user.module_name, members[chain.back()].name);
      }
    }
  }
}

void UnitClaim::assign_parameters() {
  std::unordered_set<const nn::Parameter*> owned;
  root_.module().for_each_parameter([&](const std::string& full_name, nn::Parameter& parameter) {
    owned.insert(&parameter);
    if (ignored_.contains(&parameter)) {
      ignored_parameters.push_back({full_name, &parameter});
      return;
    }
    const auto* holder = static_cast<const Unit*>(parameter.holder);
    require<ConfigError>(!holder,
                         "parameter {} {} belongs to unit {} already, which is in use: shard inner modules before the "
                         "outer one's first forward, state dict or initialize()",
                         full_name, parameter.shape.to_string(), holder ? holder->name() : "");
    const std::vector<User>& users = users_.at(&parameter);
    const bool in_turns = std::ranges::all_of(users, [](const User& user) { return user.module->writes_grads_in_turns(); });
    members[owner_of(full_name, users)].parameters.push_back({full_name, &parameter, in_turns});
  });
  for (const auto& [parameter, users] : users_) {
    require<ConfigError>(owned.contains(parameter) || ignored_.contains(parameter),
                         "{} uses the parameter '{}' {} of a module outside {}: shard a module that holds all of its users",
                         users.front().module_name, parameter->name, parameter->shape.to_string(), root_.module().type_name());
  }
}

void UnitClaim::find_buffers() {
  root_.module().for_each_module([&](const std::string& name, nn::Module& module) {
    for (const auto& buffer : module.own_buffers()) {
      std::string full_name = name.empty() ? buffer->name : name + "." + buffer->name;
      if (ignored_modules.contains(&module)) {
        ignored_buffers.push_back({std::move(full_name), buffer.get()});
      } else {
        buffers.push_back(
            {std::move(full_name), buffer.get(), members[chains_.at(&module).back()].unit->options().mixed_precision.buffer_dtype});
      }
    }
  });
}

// [Note: shared parameters]
// A parameter that several modules use (a tied head) must be gathered whenever one of them runs, so it belongs to the
// innermost unit around all of them. Policies may wrap its owner alone; by hand that would be a surprise and is refused.
std::size_t UnitClaim::owner_of(const std::string& full_name, const std::vector<User>& users) const {
  const Chain& first = chain_of(users.front());
  std::size_t depth = first.size();
  for (const User& user : users) {
    const Chain& chain = chain_of(user);
    depth = std::min(depth, static_cast<std::size_t>(std::ranges::mismatch(chain, first).in1 - chain.begin()));
  }
  for (const User& user : users) {
    const Chain& chain = chain_of(user);
    const auto split = std::find_if(chain.begin() + static_cast<std::ptrdiff_t>(depth), chain.end(),
                                    [&](std::size_t i) { return !members[i].unit->options().wrapped_by_policy; });
    require<ConfigError>(split == chain.end(),
                         "parameter {} is shared by {} and {}; wrapping {} by hand would split it: wrap a module that "
                         "holds all of its users, or neither",
                         full_name, users.front().module_name, users.back().module_name, split == chain.end() ? "" : members[*split].name);
  }
  return first[depth - 1];
}

void UnitClaim::check_frozen() const {
  if (options_.use_orig_params) return;
  for (const Member& member : members) {
    if (member.parameters.empty()) continue;
    const UnitParameter& first = member.parameters.front();
    const auto other = std::ranges::find_if(
        member.parameters, [&](const UnitParameter& p) { return p.parameter->requires_grad != first.parameter->requires_grad; });
    if (other == member.parameters.end()) continue;
    const bool first_frozen = !first.parameter->requires_grad;
    throw ConfigError(
        fmt::format("unit {} mixes frozen parameters ({}) and trainable ones ({}), which only original-parameter mode allows: set "
                    "fsdp.use_orig_params=true, or wrap them as units of their own",
                    member.name, first_frozen ? first.full_name : other->full_name, first_frozen ? other->full_name : first.full_name));
  }
}

void UnitClaim::check_options() const {
  struct Setting {
    const char* name;
    bool RootOptions::*value;
  };
  static constexpr Setting kSettings[] = {{"use_orig_params", &RootOptions::use_orig_params},
                                          {"full_precision_in_eval", &RootOptions::full_precision_in_eval},
                                          {"limit_all_gathers", &RootOptions::limit_all_gathers},
                                          {"deterministic", &RootOptions::deterministic}};
  for (const Member& member : members) {
    const std::optional<RootOptions>& own = member.unit->options().root;
    for (const Setting& setting : kSettings) {
      require<ConfigError>(!own || (*own).*setting.value == options_.*setting.value,
                           "{} is one value under a root: it is {} for unit {} and {} for the root; leave Options::root out of "
                           "units inside",
                           setting.name, !(options_.*setting.value), member.name, options_.*setting.value);
    }
    require<ConfigError>(!options_.deterministic || member.unit->options().reduction == nullptr,
                         "unit {} has a reduction of its own under a deterministic root, which has its own: choose one", member.name);
  }
}

void UnitClaim::check_meshes() const {
  const DeviceMesh& of_root = root_.device_mesh();
  for (const Member& member : members) {
    const DeviceMesh& own = member.unit->device_mesh();
    require<ConfigError>(own.shares_device_with(of_root),
                         "unit {} was sharded on a DeviceMesh with streams and memory other than its root's: units of one root may "
                         "be on different grids of ranks, but on one device; make the second mesh with DeviceMesh(mesh, first)",
                         member.name);
    require<ConfigError>(own.geometry().world_size == of_root.geometry().world_size && own.mesh().rank() == of_root.mesh().rank(),
                         "unit {} is on a mesh of {} ranks, where this is rank {}, and its root on one of {}, where it is rank {}: "
                         "all grids of one root must have the same ranks in the same order",
                         member.name, own.geometry().world_size, own.mesh().rank(), of_root.geometry().world_size, of_root.mesh().rank());
  }
}

}  // namespace mica::fsdp
