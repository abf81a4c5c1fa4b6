// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "mica/optim/state_dict.hpp"

namespace mica::optim {

/// The scalar that counts a parameter's steps.
inline constexpr const char* kStep = "step";

/// Names instead of ids; of a full or local dict.
[[nodiscard]] OptimStateDict by_name(const OptimStateDict& dict, const Optimizer& optimizer);
/// Of a key of by_name().
[[nodiscard]] inline const std::string& name_of(const ParameterKey& key) { return std::get<std::string>(key); }

/// @param dict     of by_name()
/// @param is_full  every tensor is whole; of a local dict a parameter without a piece here has none.
/// @throws CheckpointError naming what is not the optimizer's, missing, or of another shape.
void check_state(const OptimStateDict& dict, const Optimizer& optimizer, bool is_full);

}  // namespace mica::optim
