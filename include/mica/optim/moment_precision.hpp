// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

#include "mica/core/dtype.hpp"
#include "mica/device/stream.hpp"

namespace mica::optim {

/// What an optimizer keeps its moments in, between steps. A step computes in fp32 and uses its new moments before they are rounded
/// ([Note: rounding of moments], src/tensor/moment_rounding.hpp). Below fp32 only on a CPU. [Note: moment precision]
/// Every element is rounded on its own, so shards may be cut anywhere and the bits are the same on any number of ranks.
enum class MomentPrecision : std::uint8_t {
  fp32,
  bf16,
  int8,  ///< [Note: 8-bit moments], src/tensor/moment_codes.hpp
};
/// "fp32", "bf16", "int8"
[[nodiscard]] std::string_view moment_precision_name(MomentPrecision precision);
/// @throws ConfigError that lists the names
[[nodiscard]] MomentPrecision moment_precision_from_name(std::string_view name);
/// @throws ConfigError for a precision that optimizers do not support on this device
void require_precision_on(DeviceKind device, MomentPrecision precision);

/// The dtype of one kind of state.
[[nodiscard]] DType moment_dtype(MomentPrecision precision, std::string_view kind);

}  // namespace mica::optim
