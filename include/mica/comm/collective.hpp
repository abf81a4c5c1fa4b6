// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace mica {

enum class ReduceOp : std::uint8_t { sum, max };

/// The two waits are for the other members of memory that a group shares ([Note: memory side by side]); they move no bytes.
enum class Collective : std::uint8_t {
  all_gather,
  reduce_scatter,
  all_reduce,
  all_to_all,
  broadcast,
  barrier,
  wait_for_written,
  wait_for_released
};
inline constexpr std::size_t kNumCollectives = 8;
/// "all_gather", ...: a string literal.
[[nodiscard]] constexpr const char* collective_name(Collective kind) {
  constexpr std::array<const char*, kNumCollectives> names{"all_gather", "reduce_scatter", "all_reduce",       "all_to_all",
                                                           "broadcast",  "barrier",        "wait_for_written", "wait_for_released"};
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
