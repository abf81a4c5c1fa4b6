// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace mica {

enum class ReduceOp : std::uint8_t { sum, max };

enum class Collective : std::uint8_t { all_gather, reduce_scatter, all_reduce, all_to_all, broadcast, barrier };
inline constexpr std::size_t kNumCollectives = 6;
/// "all_gather", ...: a string literal.
[[nodiscard]] constexpr const char* collective_name(Collective kind) {
  constexpr std::array<const char*, kNumCollectives> names{"all_gather", "reduce_scatter", "all_reduce",
                                                           "all_to_all", "broadcast",      "barrier"};
  return names[static_cast<std::size_t>(kind)];
}

/// Calls and bytes since the group was made. Counted at enqueue.
struct CollectiveCounts {
  std::array<std::int64_t, kNumCollectives> calls{};
  std::array<std::int64_t, kNumCollectives> bytes{};  ///< of the unsharded side
  [[nodiscard]] std::int64_t of(Collective kind) const { return calls[static_cast<std::size_t>(kind)]; }
  [[nodiscard]] std::int64_t bytes_of(Collective kind) const { return bytes[static_cast<std::size_t>(kind)]; }
};

}  // namespace mica
