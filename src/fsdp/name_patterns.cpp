// SPDX-License-Identifier: Apache-2.0
#include "mica/fsdp/name_patterns.hpp"

#include <algorithm>

#include <fnmatch.h>

#include "mica/core/error.hpp"

namespace mica::fsdp {

bool matches_pattern(const std::string& name, const std::string& pattern) { return fnmatch(pattern.c_str(), name.c_str(), 0) == 0; }

std::vector<nn::Parameter*> parameters_matching(nn::Module& module, const std::vector<std::string>& patterns, const std::string& what) {
  std::vector<nn::Parameter*> found;
  std::vector<bool> fits(patterns.size(), false);
  std::string first;
  module.for_each_parameter([&](const std::string& full_name, nn::Parameter& parameter) {
    if (first.empty()) first = full_name;
    bool any = false;
    for (std::size_t i = 0; i < patterns.size(); ++i) {
      if (!matches_pattern(full_name, patterns[i])) continue;
      any = fits[i] = true;
    }
    if (any) found.push_back(&parameter);
  });
  for (std::size_t i = 0; i < patterns.size(); ++i) {
    require<ConfigError>(fits[i], "{}: the pattern '{}' fits no parameter of the model; names are like {}", what, patterns[i], first);
  }
  return found;
}

}  // namespace mica::fsdp
