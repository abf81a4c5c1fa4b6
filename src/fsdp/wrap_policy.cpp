// SPDX-License-Identifier: Apache-2.0
#include "mica/fsdp/wrap_policy.hpp"

#include <algorithm>

#include "mica/fsdp/ignored.hpp"

namespace mica::fsdp {
namespace {

class Wrapper {
 public:
  Wrapper(DeviceMesh& device_mesh, const Options& options, const WrapPolicy& policy)
      : device_mesh_(device_mesh), options_(options), policy_(policy), ignored_(options) {}

  /// Wraps inside the subtree.
  void wrap_below(nn::Module& module) {
    if (!ask(module, WrapQuestion::Kind::descend).yes) return;
    for (const nn::Module::Child& child : module.children()) {
      nn::Module& inside = *child.module;
      if (inside.hooks() || ignored_.modules.contains(&inside)) continue;
      wrap_below(inside);
      if (unwrapped_numel(inside) == 0) continue;
      const WrapAnswer answer = ask(inside, WrapQuestion::Kind::wrap);
      if (!answer.yes) continue;
      Options own = answer.options.value_or(options_);
      own.wrapped_by_policy = true;
      fully_shard(inside, device_mesh_, own);
    }
  }

 private:
  [[nodiscard]] std::int64_t unwrapped_numel(const nn::Module& module) const {
    if (module.hooks()) return 0;
    std::int64_t numel = 0;
    for (const auto& parameter : module.own_parameters()) {
      if (!ignored_.parameters.contains(parameter.get())) numel += parameter->shape.numel();
    }
    for (const nn::Module::Child& child : module.children()) numel += unwrapped_numel(*child.module);
    return numel;
  }
  [[nodiscard]] WrapAnswer ask(const nn::Module& module, WrapQuestion::Kind kind) const {
    return policy_({kind, module, unwrapped_numel(module), options_});
  }

  DeviceMesh& device_mesh_;
  const Options& options_;
  const WrapPolicy& policy_;
  IgnoredSet ignored_;
};

}  // namespace

WrapPolicy wrap_types(std::vector<std::string> type_names) {
  return [type_names = std::move(type_names)](const WrapQuestion& q) {
    return q.descends() || std::ranges::find(type_names, q.module.type_name()) != type_names.end();
  };
}

WrapPolicy wrap_min_numel(std::int64_t min_numel) {
  return [min_numel](const WrapQuestion& q) { return q.unwrapped_numel >= min_numel && (q.descends() || q.module.has_forward()); };
}

WrapPolicy wrap_always() {
  return [](const WrapQuestion& q) { return q.descends() || q.module.has_forward(); };
}

WrapPolicy wrap_nothing() {
  return [](const WrapQuestion&) { return false; };
}

Root& auto_wrap(nn::Module& module, DeviceMesh& device_mesh, const Options& options, const WrapPolicy& policy) {
  Options inherited = options;
  inherited.wrapped_by_policy = true;
  // Mistakes in the root's options are refused before any module inside has become a unit.
  check_wrappable(module, device_mesh, inherited);
  Wrapper(device_mesh, inherited, policy).wrap_below(module);
  fully_shard(module, device_mesh, inherited);
  return root_of(module);
}

}  // namespace mica::fsdp
