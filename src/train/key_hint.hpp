// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace mica::train {

/// A hint for the error about an unknown key: "did you mean optim.lr?"; empty where no key is likely. Looks among the field's other words
/// (config_other_names.hpp), then for the same name in other sections, then for the key with the fewest changed letters.
/// @param name  with or without a section; a flag's dashes count as underscores
[[nodiscard]] std::string hint_for_key(std::string_view name);

}  // namespace mica::train
