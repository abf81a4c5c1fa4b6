// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace mica::train {

/// What was meant by a name that no key has, for its error: "did you mean optim.lr?" By the field's other words
/// (config_other_names.hpp), then by keys of the same name in other sections, then by the fewest changed letters.
/// @param name  with or without a section; a flag's dashes count as underscores
[[nodiscard]] std::string hint_for_key(std::string_view name);

}  // namespace mica::train
