// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "mica/device/tracer.hpp"

namespace mica::detail {

/// The times of a GPU's stream, by its events.
[[nodiscard]] std::unique_ptr<StreamClock> make_gpu_clock(Stream& stream);

}  // namespace mica::detail
