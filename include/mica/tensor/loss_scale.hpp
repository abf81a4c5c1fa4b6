// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace mica {

/// A loss scale is not lowered below this. A step that overflows with it does so in its forward, which the scale does not change.
constexpr float kLeastLossScale = 0x1p-24F;

}  // namespace mica
