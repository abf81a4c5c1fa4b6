// SPDX-License-Identifier: Apache-2.0
#include "mica/plan/largest_fitting.hpp"

#include <algorithm>

namespace mica::plan {

std::int64_t largest_fitting(const std::function<std::int64_t(std::int64_t size)>& peak_of, std::int64_t capacity, std::int64_t most) {
  const std::int64_t peak_1 = peak_of(1);
  if (peak_1 > capacity) return 0;
  if (most == 1) return 1;
  const std::int64_t peak_2 = peak_of(2);
  if (peak_2 > capacity) return 1;
  std::int64_t low = 2, high = most + 1;  // fits, does not
  // The first guess. Sizes 1 and 2 may peak alike, where something else than activations is largest.
  const std::int64_t slope = std::max<std::int64_t>(1, peak_2 - peak_1);
  std::int64_t guess = std::min(most, low + std::max<std::int64_t>(1, (capacity - peak_2) / slope));
  // From there in steps that double, until one size fits and one does not; then by halves.
  for (std::int64_t step = 1; high - low > 1; step *= 2) {
    const bool is_bounded = low > 2 && high <= most;
    if (is_bounded) guess = low + (high - low) / 2;
    const bool fits = peak_of(guess) <= capacity;
    (fits ? low : high) = guess;
    guess = std::clamp(guess + (fits ? step : -step), low + 1, std::max(low + 1, high - 1));
  }
  return low;
}

}  // namespace mica::plan
