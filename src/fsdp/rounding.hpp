#pragma once

#include <cstdint>

namespace mica::fsdp {

/// Of numbers from 0 by numbers from 1. Example: divide_up(7, 3) = 3, round_up(7, 3) = 9.
[[nodiscard]] constexpr std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
[[nodiscard]] constexpr std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return divide_up(value, multiple) * multiple;
}

}  // namespace mica::fsdp
