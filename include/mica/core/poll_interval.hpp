// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace mica {

/// How long each of this many ranks waits before it looks again for a file that another rank writes: 20 ms for up to 80 ranks. For more,
/// so long that all of them together look 4,000 times a second into a shared file system, but at most half a second.
[[nodiscard]] constexpr std::chrono::milliseconds poll_interval(std::int64_t num_ranks) {
  return std::chrono::milliseconds(std::clamp<std::int64_t>(num_ranks / 4, 20, 500));
}

}  // namespace mica
