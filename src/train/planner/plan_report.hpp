// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "mica/train/forecast.hpp"

namespace mica::train {

/// What a step takes on the hardware and the forecast's times leave out; empty if nothing.
[[nodiscard]] std::string left_out_of_step(const Forecast& forecast, const plan::Hardware& hardware);
/// A table for people. @param largest  largest_micro_batch(), or -1: not shown
[[nodiscard]] std::string forecast_table(const Forecast& forecast, const plan::Hardware& hardware, std::int64_t largest);
/// One object: docs/planning.md, What the JSON says.
[[nodiscard]] std::string forecast_json(const Forecast& forecast, const plan::Hardware& hardware, std::int64_t largest);

}  // namespace mica::train
