// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "mica/core/error.hpp"
#include "mica/optim/state_dict.hpp"

namespace mica::optim {

namespace {

bool is_name(const ParameterKey& key) { return std::holds_alternative<std::string>(key); }

std::vector<const ParameterKey*> all_keys(const OptimStateDict& dict) {
  std::vector<const ParameterKey*> keys;
  for (const auto& [key, state] : dict.state) keys.push_back(&key);
  for (const OptimStateDict::Group& group : dict.groups) {
    for (const ParameterKey& key : group.parameters) keys.push_back(&key);
  }
  return keys;
}

/// Each key in the other kind (name or id). Ids count through the groups.
std::map<ParameterKey, ParameterKey> other_names(const Optimizer& optimizer, KeyKind wanted) {
  std::map<ParameterKey, ParameterKey> names;
  std::int64_t id = 0;
  for (const ParamGroup& group : optimizer.groups()) {
    for (const std::string& name : group.parameters) {
      names.emplace(wanted == KeyKind::id ? ParameterKey(name) : ParameterKey(id),
                    wanted == KeyKind::id ? ParameterKey(id) : ParameterKey(name));
      ++id;
    }
  }
  return names;
}

}  // namespace

OptimStateDict rekey_optim_state_dict(const OptimStateDict& dict, KeyKind kind, const Optimizer& optimizer) {
  const std::vector<const ParameterKey*> keys = all_keys(dict);
  const auto num_names = std::ranges::count_if(keys, [](const ParameterKey* key) { return is_name(*key); });
  require<ConfigError>(num_names == 0 || num_names == static_cast<std::ptrdiff_t>(keys.size()),
                       "the optimizer state dict has {} keys that are names and {} that are ids: expected one kind", num_names,
                       static_cast<std::ptrdiff_t>(keys.size()) - num_names);
  if (keys.empty() || (num_names > 0) == (kind == KeyKind::name)) return dict;
  const std::map<ParameterKey, ParameterKey> names = other_names(optimizer, kind);
  OptimStateDict result;
  for (const auto& [key, state] : dict.state) {
    if (const auto found = names.find(key); found != names.end()) result.state[found->second] = state;
  }
  for (const OptimStateDict::Group& group : dict.groups) {
    OptimStateDict::Group& renamed = result.groups.emplace_back(OptimStateDict::Group{{}, group.options});
    for (const ParameterKey& key : group.parameters) {
      if (const auto found = names.find(key); found != names.end()) renamed.parameters.push_back(found->second);
    }
    std::ranges::sort(renamed.parameters);
  }
  return result;
}

}  // namespace mica::optim
