// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <concepts>
#include <type_traits>

namespace mica {

/// For a >= 0 and b >= 1. Example: divide_up(7, 3) = 3, round_up(7, 3) = 9, round_down(7, 3) = 6.
template <std::integral T>
[[nodiscard]] constexpr T divide_up(T a, std::type_identity_t<T> b) {
  return (a + b - 1) / b;
}
template <std::integral T>
[[nodiscard]] constexpr T round_up(T value, std::type_identity_t<T> multiple) {
  return divide_up(value, multiple) * multiple;
}
template <std::integral T>
[[nodiscard]] constexpr T round_down(T value, std::type_identity_t<T> multiple) {
  return value / multiple * multiple;
}
/// The size of all parts but perhaps the last, cut as few and as even as can be with at most `most` in each: of 9 with at most 4 it is 3.
template <std::integral T>
[[nodiscard]] constexpr T even_part(T total, std::type_identity_t<T> most) {
  return divide_up(total, std::max(divide_up(total, most), T{1}));
}

}  // namespace mica
