// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "mica/nn/module.hpp"

namespace mica::fsdp {

/// Whether a full name matches a glob: "*" is any text (dots too), "?" one character, "[ab]" one of these.
[[nodiscard]] bool matches_pattern(const std::string& name, const std::string& pattern);

/// The parameters of the module whose full name matches one of the patterns, in module order.
/// Example: {"transformer.h.0.*", "*.bias"}
/// @param what  names the patterns in an error: "fsdp.freeze".
/// @throws ConfigError naming a pattern that matches no parameter.
[[nodiscard]] std::vector<nn::Parameter*> parameters_matching(nn::Module& module, const std::vector<std::string>& patterns,
                                                              const std::string& what);

}  // namespace mica::fsdp
