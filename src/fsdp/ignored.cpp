// SPDX-License-Identifier: Apache-2.0
#include "mica/fsdp/ignored.hpp"

namespace mica::fsdp {
namespace {

void add_subtree(IgnoredSet& ignored, const nn::Module& module) {
  if (!ignored.modules.insert(&module).second) return;
  for (const auto& parameter : module.own_parameters()) ignored.parameters.insert(parameter.get());
  for (const nn::Parameter* parameter : module.shared_parameters()) ignored.parameters.insert(parameter);
  for (const nn::Module::Child& child : module.children()) {
    if (!child.module->hooks()) add_subtree(ignored, *child.module);
  }
}

}  // namespace

IgnoredSet::IgnoredSet(const Options& options) : parameters(options.ignored_parameters.begin(), options.ignored_parameters.end()) {
  for (const nn::Module* module : options.ignored_modules) add_subtree(*this, *module);
}

}  // namespace mica::fsdp
