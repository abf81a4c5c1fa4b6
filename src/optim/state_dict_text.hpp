// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "mica/optim/state_dict.hpp"

namespace mica::optim {

/// A dict keyed by names, its tensors reduced to their kinds, as text for the other ranks.
[[nodiscard]] std::string text_of(const OptimStateDict& dict);
/// What text_of() was made from, with empty tensors.
[[nodiscard]] OptimStateDict dict_without_tensors(const std::string& text);

}  // namespace mica::optim
