// SPDX-License-Identifier: Apache-2.0
// [Note: 8-bit moments]: the codes' values, their rounding and its error.
#include "../../../src/tensor/moment_codes.hpp"

#include <algorithm>
#include <cmath>

#include "../../../src/tensor/scalar_math.hpp"
#include "loops_testing.hpp"

namespace mica {
namespace {

template <class Code>
struct Codes {
  static float value(std::uint32_t code) { return moment_value<Code, ScalarMath>(code); }
  static std::uint32_t nearest(float x) { return nearest_moment_code<Code, ScalarMath>(x); }
  static std::uint32_t at(float x, std::uint32_t noise) { return moment_code<Code, ScalarMath>(x, noise); }
};
using Moment = Codes<Moment8Code>;
using Square = Codes<Square8Code>;

TEST(MomentCodes, Values) {
  EXPECT_EQ(Moment::value(0), 0);
  EXPECT_EQ(Moment::value(1), 0x1p-27F);
  EXPECT_EQ(Moment::value(2), 1.25F * 0x1p-27F);
  EXPECT_EQ(Moment::value(126), 20);
  EXPECT_TRUE(std::isnan(Moment::value(127)));
  EXPECT_EQ(Moment::value(0x80 | 126), -20);
  EXPECT_EQ(Square::value(0), 0);
  EXPECT_EQ(Square::value(1), 0x1p-54F);
  EXPECT_EQ(Square::value(254), 640);
  EXPECT_TRUE(std::isnan(Square::value(255)));
}

template <class Code>
void expect_codes_come_back() {
  for (std::uint32_t code = 0; code < 256; ++code) {
    const float value = Codes<Code>::value(code);
    if (std::isnan(value)) continue;
    EXPECT_EQ(Codes<Code>::nearest(value), code);
    for (const std::uint32_t noise : {0U, 1U, 0x1fffffU}) EXPECT_EQ(Codes<Code>::at(value, noise), code) << "exact values are kept";
  }
}
TEST(MomentCodes, EveryCodeComesBack) {
  expect_codes_come_back<Moment8Code>();
  expect_codes_come_back<Square8Code>();
}

/// Nearest: half the distance of the neighbours, an eighth of a number's magnitude, or half of the smallest number.
template <class Code>
void expect_error_bounds(float smallest, float largest) {
  for (const double x : testing::normals(20000, 3)) {
    for (const float scale : {1e-9F, 1e-7F, 1e-3F, 1.0F, 4.0F}) {
      const float value = static_cast<float>(Code::kIsSigned ? x : x * x) * (Code::kIsSigned ? scale : scale * scale);
      if (std::abs(value) > largest) continue;
      const float bound = std::abs(value) < smallest ? smallest / 2 : std::abs(value) / 8;
      ASSERT_LE(std::abs(Codes<Code>::value(Codes<Code>::nearest(value)) - value), bound) << value;
    }
  }
}
TEST(MomentCodes, ErrorOfTheNearest) {
  expect_error_bounds<Moment8Code>(0x1p-27F, 20);
  expect_error_bounds<Square8Code>(0x1p-54F, 640);
}

TEST(MomentCodes, TiesOfTheNearest) {
  EXPECT_EQ(Moment::nearest(1.125F * 0x1p-27F), 2U);
  EXPECT_EQ(Moment::nearest(1.375F * 0x1p-27F), 2U);
  EXPECT_EQ(Square::nearest(1.375F * 0x1p-54F), 2U);
  EXPECT_EQ(Moment::nearest(0x1p-28F), 1U) << "not to the even 0";
  EXPECT_EQ(Moment::nearest(-0x1p-28F), 0x81U);
  EXPECT_EQ(Square::nearest(0x1p-55F), 1U);
}

/// The share of noises that round up is what is cut off: the mean is exact. Also between 0 and the smallest number.
template <class Code>
void expect_mean(float x) {
  constexpr int kNoises = 1 << 16;
  double sum = 0;
  for (std::uint32_t noise = 0; noise < kNoises; ++noise) sum += static_cast<double>(Codes<Code>::value(Codes<Code>::at(x, noise << 5)));
  const double smallest = static_cast<double>(Codes<Code>::value(1));
  EXPECT_NEAR(sum / kNoises, static_cast<double>(x), std::max(std::abs(static_cast<double>(x)) / 4, smallest) / kNoises) << x;
}
TEST(MomentCodes, TheMeanOverAllNoisesIsExact) {
  for (const float x : {1.0F, 1.1F, -1.2499F, 0.0031F, -19.9F, 1e-8F, 7e-9F, -1e-9F, 1e-12F, 0.0F}) expect_mean<Moment8Code>(x);
  for (const float x : {1.0F, 1.1F, 0.0031F, 639.0F, 1e-16F, 5e-17F, 1e-20F, 0.0F}) expect_mean<Square8Code>(x);
}

TEST(MomentCodes, TheLargestAndWhatIsNoNumber) {
  for (const std::uint32_t noise : {0U, 0x1fffffU}) {
    EXPECT_EQ(Moment::at(20.1F, noise), 126U);
    EXPECT_EQ(Moment::at(-3e38F, noise), 0x80U | 126U);
    EXPECT_EQ(Square::at(3e38F, noise), 254U);
    EXPECT_EQ(Moment::at(INFINITY, noise), 127U);
    EXPECT_EQ(Moment::at(std::nanf(""), noise) & 0x7fU, 127U);
    EXPECT_EQ(Square::at(INFINITY, noise), 255U);
    EXPECT_EQ(Square::at(std::nanf(""), noise), 255U);
  }
}

// Of every instruction set, between all dtypes of state, in the middle of a range and at its odd end.
TEST(MomentCodes, LoopsConvertAsScalarsDo) {
  const std::int64_t n = testing::kSplitNumel;
  std::vector<double> values = testing::normals(n, 5, 0.01);
  values[3] = 0, values[4] = 1e9, values[5] = 1e-12, values[6] = std::nan("");
  const testing::Array x(DType::f32, values);
  for (const cpu::Loops* loops : testing::all_loops()) {
    SCOPED_TRACE(testing::name_of(*loops));
    for (const DType dtype : {DType::moment8, DType::square8}) {
      testing::Array codes(dtype, n), back(DType::f32, n), narrow(DType::bf16, n);
      loops->convert(x.data(), DType::f32, codes.data(), dtype, 0, n);
      for (std::int64_t i = 0; i < n; ++i) {
        const auto code = static_cast<const std::uint8_t*>(codes.data())[i];
        const auto value = static_cast<float>(x[i]);
        ASSERT_EQ(code, dtype == DType::moment8 ? Moment::nearest(value) : Square::nearest(value)) << i << ": " << value;
      }
      loops->convert(codes.data(), dtype, back.data(), DType::f32, 0, n);
      loops->convert(codes.data(), dtype, narrow.data(), DType::bf16, 0, n);
      for (std::int64_t i = 0; i < n; ++i) {
        const std::uint32_t code = static_cast<const std::uint8_t*>(codes.data())[i];
        const double value = static_cast<double>(dtype == DType::moment8 ? Moment::value(code) : Square::value(code));
        if (std::isnan(value)) {
          ASSERT_TRUE(std::isnan(back[i]) && std::isnan(narrow[i])) << i;
        } else {
          ASSERT_TRUE(back[i] == value && narrow[i] == value) << i;
        }
      }
      testing::Array filled(dtype, n);
      loops->fill(filled.data(), dtype, 1.0, 0, n);
      EXPECT_EQ(filled, testing::Array(dtype, std::vector<double>(static_cast<std::size_t>(n), 1.0)));
    }
  }
}

}  // namespace
}  // namespace mica
