#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <span>

namespace mica {

/// A sum of numbers >= 0 without rounding, so that neither their order nor who added which of them shows in its bits.
/// [Note: exact sums]
/// limb k (i64) counts units of 2^(-320 + 32*k): what squares of f32 numbers need, down to the smallest one. Numbers
/// from 2^256 on count as infinite (as f32 the sum would be), parts below 2^-320 are dropped from each number alone.
/// Two counts follow: infinite numbers and NaNs. Sums are added limb by limb, as integers.
struct ExactSum {
  static constexpr int kLowestExponent = -320;
  static constexpr int kLimbBits = 32;
  static constexpr std::int64_t kValueLimbs = 18;
  static constexpr std::int64_t kInfinities = kValueLimbs;
  static constexpr std::int64_t kNans = kValueLimbs + 1;
  static constexpr std::int64_t kLimbs = kValueLimbs + 2;
};

/// Carries what exceeds 32 bits upwards: then equal sums are equal limb by limb, and 2^31 of them can be added.
inline void carry(std::span<std::int64_t, ExactSum::kLimbs> limbs) {
  for (std::size_t k = 0; k + 1 < ExactSum::kValueLimbs; ++k) {
    limbs[k + 1] += limbs[k] >> ExactSum::kLimbBits;
    limbs[k] &= (std::int64_t{1} << ExactSum::kLimbBits) - 1;
  }
}

/// The sum as a number, off by 2^-52 of it at most. @param limbs  after carry().
[[nodiscard]] inline double exact_sum_value(std::span<const std::int64_t, ExactSum::kLimbs> limbs) {
  if (limbs[ExactSum::kNans] != 0) return std::numeric_limits<double>::quiet_NaN();
  if (limbs[ExactSum::kInfinities] != 0) return std::numeric_limits<double>::infinity();
  double value = 0;
  for (int k = 0; k < static_cast<int>(ExactSum::kValueLimbs); ++k) {  // small ones first
    value += std::ldexp(static_cast<double>(limbs[static_cast<std::size_t>(k)]), ExactSum::kLowestExponent + k * ExactSum::kLimbBits);
  }
  return value;
}

}  // namespace mica
