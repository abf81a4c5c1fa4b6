// SPDX-License-Identifier: Apache-2.0
#include "mica/core/half.hpp"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include <gtest/gtest.h>

namespace mica {
namespace {

/// A 16-bit format by its definition: sign, exponent, mantissa.
struct Format {
  int exponent_bits;
  int mantissa_bits;

  [[nodiscard]] double value(std::uint32_t bits) const {
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const double sign = (bits >> 15) != 0 ? -1 : 1;
    const int exponent = static_cast<int>((bits >> mantissa_bits) & ((1U << exponent_bits) - 1));
    const double mantissa = static_cast<double>(bits & ((1U << mantissa_bits) - 1)) / (1 << mantissa_bits);
    if (exponent == (1 << exponent_bits) - 1) {
      return mantissa == 0 ? sign * std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
    }
    return exponent == 0 ? sign * std::ldexp(mantissa, 1 - bias) : sign * std::ldexp(1 + mantissa, exponent - bias);
  }
};
constexpr Format kBf16{8, 7};
constexpr Format kF16{5, 10};

template <class Half>
void check_all_patterns(const Format& format) {
  for (std::uint32_t bits = 0; bits <= 0xffff; ++bits) {
    Half half;
    half.bits = static_cast<std::uint16_t>(bits);
    const double expected = format.value(bits);
    const auto value = static_cast<float>(half);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(value)) << std::hex << bits;
      ASSERT_TRUE(std::isnan(static_cast<float>(Half(value)))) << std::hex << bits;
      ASSERT_EQ(Half(value).bits >> 15, bits >> 15) << "a NaN keeps its sign, " << std::hex << bits;
      continue;
    }
    ASSERT_EQ(static_cast<double>(value), expected) << std::hex << bits;
    ASSERT_EQ(std::signbit(value), bits >> 15 != 0) << std::hex << bits;
    ASSERT_EQ(Half(value).bits, bits) << "there and back, " << std::hex << bits;
  }
}

/// Between each two neighbours: just below, at and just above the middle, and the ends themselves.
template <class Half>
void check_rounding(const Format& format) {
  std::uint32_t largest_finite = 0;
  while (std::isfinite(format.value(largest_finite + 1))) ++largest_finite;
  for (std::uint32_t low = 0; low < largest_finite; ++low) {
    const double middle = (format.value(low) + format.value(low + 1)) / 2;
    const auto at = static_cast<float>(middle);
    ASSERT_EQ(static_cast<double>(at), middle) << "middles are exact in fp32, " << std::hex << low;
    const std::uint32_t even = low % 2 == 0 ? low : low + 1;
    for (const float sign : {1.0F, -1.0F}) {
      const std::uint32_t sign_bit = sign < 0 ? 0x8000U : 0U;
      ASSERT_EQ(Half(sign * std::nextafter(at, 0.0F)).bits, low | sign_bit) << std::hex << low;
      ASSERT_EQ(Half(sign * at).bits, even | sign_bit) << std::hex << low;
      ASSERT_EQ(Half(sign * std::nextafter(at, INFINITY)).bits, (low + 1) | sign_bit) << std::hex << low;
    }
  }
  // Past the largest finite value: half a step further rounds to infinity, the tie included (its even neighbour).
  const double top = format.value(largest_finite);
  const auto tie = static_cast<float>(top + (top - format.value(largest_finite - 1)) / 2);
  EXPECT_EQ(Half(std::nextafter(tie, 0.0F)).bits, largest_finite);
  EXPECT_EQ(Half(tie).bits, largest_finite + 1);
  EXPECT_EQ(Half(-tie).bits, (largest_finite + 1) | 0x8000U);
  EXPECT_EQ(Half(std::numeric_limits<float>::max()).bits, largest_finite + 1);
  EXPECT_EQ(Half(INFINITY).bits, largest_finite + 1);
  EXPECT_EQ(Half(-INFINITY).bits, (largest_finite + 1) | 0x8000U);
}

TEST(Bf16, EveryPatternIsTheValueOfItsDefinition) { check_all_patterns<bf16>(kBf16); }
TEST(Bf16, RoundsToNearestTiesToEven) { check_rounding<bf16>(kBf16); }
TEST(F16, EveryPatternIsTheValueOfItsDefinition) { check_all_patterns<f16>(kF16); }
TEST(F16, RoundsToNearestTiesToEven) { check_rounding<f16>(kF16); }

TEST(F16, TinyValuesKeepTheirSign) {
  EXPECT_EQ(f16(std::numeric_limits<float>::denorm_min()).bits, 0U);
  EXPECT_EQ(f16(-std::numeric_limits<float>::denorm_min()).bits, 0x8000U);
  EXPECT_EQ(f16(0x1p-25F).bits, 0U) << "half of the smallest: the even neighbour is zero";
  EXPECT_EQ(f16(std::nextafter(0x1p-25F, 1.0F)).bits, 1U);
}

TEST(Half, ANanWhoseUpperBitsAreZeroStaysANan) {
  const float low_payload = std::bit_cast<float>(0x7f800001U);
  EXPECT_TRUE(std::isnan(static_cast<float>(bf16(low_payload))));
  EXPECT_TRUE(std::isnan(static_cast<float>(f16(low_payload))));
}

}  // namespace
}  // namespace mica
