// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "mica/train/forecast.hpp"

namespace mica::train {

/// A table for people. @param largest  largest_micro_batch(), or -1: not shown
[[nodiscard]] std::string forecast_table(const Forecast& forecast, const plan::Hardware& hardware, std::int64_t largest);
/// One object: docs/planning.md, What the JSON says.
[[nodiscard]] std::string forecast_json(const Forecast& forecast, const plan::Hardware& hardware, std::int64_t largest);

}  // namespace mica::train
