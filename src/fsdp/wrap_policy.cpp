#include "mica/fsdp/wrap_policy.hpp"

#include <algorithm>

namespace mica::fsdp {
namespace {

/// Wraps inside the subtree. @returns the elements that no unit in it holds.
std::int64_t wrap_below(nn::Module& module, DeviceMesh& device_mesh, const Options& options, const WrapPolicy& policy,
                        bool is_root) {
  std::int64_t unwrapped = 0;
  for (const auto& parameter : module.own_parameters()) unwrapped += parameter->shape.numel();
  for (const nn::Module::Child& child : module.children()) {
    unwrapped += wrap_below(*child.module, device_mesh, options, policy, false);
  }
  if (module.hooks()) return 0;
  if (!is_root && (!module.has_forward() || unwrapped == 0 || !policy(module, unwrapped))) return unwrapped;
  fully_shard(module, device_mesh, options);
  return 0;
}

}  // namespace

WrapPolicy wrap_types(std::vector<std::string> type_names) {
  return [type_names = std::move(type_names)](const nn::Module& module, std::int64_t) {
    return std::ranges::find(type_names, module.type_name()) != type_names.end();
  };
}

WrapPolicy wrap_min_numel(std::int64_t min_numel) {
  return [min_numel](const nn::Module&, std::int64_t unwrapped_numel) { return unwrapped_numel >= min_numel; };
}

WrapPolicy wrap_nothing() {
  return [](const nn::Module&, std::int64_t) { return false; };
}

Root& auto_wrap(nn::Module& module, DeviceMesh& device_mesh, const Options& options, const WrapPolicy& policy) {
  Options inherited = options;
  inherited.wrapped_by_policy = true;
  wrap_below(module, device_mesh, inherited, policy, true);
  return root_of(module);
}

}  // namespace mica::fsdp
