// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>

#include "mica/core/host_device.hpp"

namespace mica {

/// A sum of numbers >= 0 without rounding, so that its bits depend neither on their order nor on which rank added which.
/// [Note: exact sums]
/// limb k (i64) counts units of 2^(-320 + 32*k), fine enough for the square of the smallest f32 number. Numbers from 2^256 on
/// count as infinite (their sum is infinite in f32); bits below 2^-320 are dropped from each number before it is added.
/// Two counts follow: infinite numbers and NaNs. Sums are added limb by limb, as integers.
struct ExactSum {
  static constexpr int kLowestExponent = -320;
  static constexpr int kLimbBits = 32;
  static constexpr std::int64_t kValueLimbs = 18;
  static constexpr std::int64_t kInfinities = kValueLimbs;
  static constexpr std::int64_t kNans = kValueLimbs + 1;
  static constexpr std::int64_t kLimbs = kValueLimbs + 2;
};

/// Calls add(k, units) for every limb that one number >= 0 (or NaN) adds to, units < 2^33.
template <class Add>
MICA_HOST_DEVICE inline void for_each_limb(double x, Add add) {
  if (x != x) return add(ExactSum::kNans, std::int64_t{1});
  const auto bits = std::bit_cast<std::uint64_t>(x);
  const int exponent = static_cast<int>(bits >> 52);
  // x = mantissa * 2^(low - 320)
  std::uint64_t mantissa = bits & ((std::uint64_t{1} << 52) - 1);
  if (exponent > 0) mantissa |= std::uint64_t{1} << 52;
  int low = (exponent > 0 ? exponent : 1) - 1075 - ExactSum::kLowestExponent;
  if (low + 52 >= static_cast<int>(ExactSum::kValueLimbs) * ExactSum::kLimbBits) return add(ExactSum::kInfinities, std::int64_t{1});
  if (low < 0) {
    mantissa = low > -53 ? mantissa >> -low : 0;
    low = 0;
  }
  constexpr std::uint64_t kLimbMask = (std::uint64_t{1} << ExactSum::kLimbBits) - 1;
  const int shift = low % ExactSum::kLimbBits;
  const std::uint64_t lower = (mantissa & kLimbMask) << shift;             // of limbs k and k + 1
  const std::uint64_t upper = (mantissa >> ExactSum::kLimbBits) << shift;  // of limbs k + 1 and k + 2
  const std::int64_t k = low / ExactSum::kLimbBits;
  const std::uint64_t units[3] = {lower & kLimbMask, (lower >> ExactSum::kLimbBits) + (upper & kLimbMask), upper >> ExactSum::kLimbBits};
  for (int i = 0; i < 3; ++i) {
    if (units[i] != 0) add(k + i, static_cast<std::int64_t>(units[i]));
  }
}

/// Carries what exceeds 32 bits to the next limb. Afterwards equal sums have equal limbs, and 2^31 sums can be added without
/// overflow.
MICA_HOST_DEVICE inline void carry(std::span<std::int64_t, ExactSum::kLimbs> limbs) {
  for (std::size_t k = 0; k + 1 < ExactSum::kValueLimbs; ++k) {
    limbs[k + 1] += limbs[k] >> ExactSum::kLimbBits;
    limbs[k] &= (std::int64_t{1} << ExactSum::kLimbBits) - 1;
  }
}

/// The sum as a double, with a relative error of at most 2^-52. @param limbs  after carry().
[[nodiscard]] MICA_HOST_DEVICE inline double exact_sum_value(std::span<const std::int64_t, ExactSum::kLimbs> limbs) {
  if (limbs[ExactSum::kNans] != 0) return std::numeric_limits<double>::quiet_NaN();
  if (limbs[ExactSum::kInfinities] != 0) return std::numeric_limits<double>::infinity();
  double value = 0;
  for (int k = 0; k < static_cast<int>(ExactSum::kValueLimbs); ++k) {  // smallest first
    value += std::ldexp(static_cast<double>(limbs[static_cast<std::size_t>(k)]), ExactSum::kLowestExponent + k * ExactSum::kLimbBits);
  }
  return value;
}

}  // namespace mica
