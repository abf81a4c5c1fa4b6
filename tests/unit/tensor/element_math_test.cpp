// SPDX-License-Identifier: Apache-2.0
#include "../../../src/tensor/element_math.hpp"

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>
#include <vector>

#include <gtest/gtest.h>

#include "mica/tensor/exact_sum.hpp"

#include "../../../src/tensor/optimizer_math.hpp"
#include "../../../src/tensor/scalar_math.hpp"

// The formulas that GPUs share with the CPU's loops, one number at a time, against double.
namespace mica {
namespace {

constexpr double kUnit = 0x1p-24;  // half a unit in the last place of 1
constexpr float kInf = std::numeric_limits<float>::infinity();

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double inner(double x) { return std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x); }

/// A number errs by a few roundings of itself and of e^x's argument, which multiply with the argument.
TEST(ElementMath, ActivationsAreDoublesWithinRounding) {
  for (float x = -20; x <= 20; x += 0.0371F) {
    const double u = inner(x), slope = std::sqrt(2 / std::numbers::pi) * (1 + 3 * 0.044715 * x * x);
    const double s = sigmoid(2 * u);
    const double relative = (8 + 4 * std::abs(u)) * kUnit;
    EXPECT_NEAR(element::gelu<ScalarMath>(x), x * s, relative * std::abs(x * s) + 1e-37) << x;
    // Two terms of opposite sign.
    const double terms = s + std::abs(2 * x * s * (1 - s) * slope);
    EXPECT_NEAR(element::gelu_derivative<ScalarMath>(x), s + 2 * x * s * (1 - s) * slope, relative * terms + 1e-30) << x;
    const double t = sigmoid(x);
    EXPECT_NEAR(element::silu<ScalarMath>(x), x * t, 8 * kUnit * std::abs(x * t)) << x;
    const auto silu = element::silu_with_slope<ScalarMath>(x);
    EXPECT_NEAR(silu.value, x * t, 8 * kUnit * std::abs(x * t)) << x;
    EXPECT_NEAR(silu.slope, t * (1 + x * (1 - t)), 12 * kUnit * (t + std::abs(x * t * (1 - t)))) << x;
    EXPECT_NEAR(element::tanh<ScalarMath>(x), std::tanh(x), 6 * kUnit * std::abs(std::tanh(x))) << x;
    const double tanh_slope = 1 / std::pow(std::cosh(x), 2);
    EXPECT_NEAR(element::tanh_derivative<ScalarMath>(x), tanh_slope, (8 + std::abs(x)) * kUnit * tanh_slope) << x;
    const auto relu = element::activation<Activation::relu, ScalarMath>(x);
    const auto relu_gradient = element::activation_gradient<Activation::relu, ScalarMath>(x, 3.0F);
    EXPECT_EQ(relu, x > 0 ? x : 0.0F) << x;
    EXPECT_EQ(relu_gradient, x > 0 ? 3.0F : 0.0F) << x;
  }
}

TEST(ElementMath, ActivationsOfExtremesAreTheirLimitsAndNanStays) {
  for (const float x : {100.0F, 1e20F, 3e38F}) {
    EXPECT_EQ(element::gelu<ScalarMath>(x), x);
    EXPECT_EQ(element::gelu<ScalarMath>(-x), 0);
    EXPECT_EQ(element::gelu_derivative<ScalarMath>(x), 1);
    EXPECT_NEAR(element::gelu_derivative<ScalarMath>(-x), 0, 1e-30);
    EXPECT_EQ(element::silu<ScalarMath>(x), x);
    EXPECT_NEAR(element::silu<ScalarMath>(-x), 0, 1e-30);
    EXPECT_EQ(element::silu_with_slope<ScalarMath>(x).slope, 1);
    EXPECT_NEAR(element::silu_with_slope<ScalarMath>(-x).slope, 0, 1e-30);
    EXPECT_NEAR(element::silu_with_slope<ScalarMath>(-x).value, 0, 1e-30);
    EXPECT_EQ(element::tanh<ScalarMath>(x), 1);
    EXPECT_EQ(element::tanh<ScalarMath>(-x), -1);
    EXPECT_NEAR(element::tanh_derivative<ScalarMath>(-x), 0, 1e-30);
  }
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(element::gelu<ScalarMath>(nan)));
  EXPECT_TRUE(std::isnan(element::gelu_derivative<ScalarMath>(nan)));
  EXPECT_TRUE(std::isnan(element::silu<ScalarMath>(nan)));
  EXPECT_TRUE(std::isnan(element::tanh<ScalarMath>(nan)));
  const auto relu_of_nan = element::activation<Activation::relu, ScalarMath>(nan);
  EXPECT_TRUE(std::isnan(relu_of_nan));
  EXPECT_TRUE(std::isnan(element::silu_with_slope<ScalarMath>(nan).slope));
  for (const auto [a, b] : {std::array{nan, 1.0F}, std::array{1.0F, nan}, std::array{nan, kInf}}) {
    EXPECT_TRUE(std::isnan(element::max_or_nan(a, b)));
  }
  EXPECT_EQ(element::max_or_nan(1.0F, kInf), kInf);
  EXPECT_EQ(element::max_or_nan(2.0F, -3.0F), 2.0F);
}

TEST(ElementMath, APairIsTurned) {
  const float cos = std::cos(0.7F), sin = std::sin(0.7F);
  const auto turned = element::turn(3.0F, -2.0F, cos, sin);
  EXPECT_NEAR(turned.a, 3 * std::cos(0.7) + 2 * std::sin(0.7), 16 * kUnit);
  EXPECT_NEAR(turned.b, -2 * std::cos(0.7) + 3 * std::sin(0.7), 16 * kUnit);
  const auto back = element::turn(turned.a, turned.b, cos, -sin);
  EXPECT_NEAR(back.a, 3, 32 * kUnit);
  EXPECT_NEAR(back.b, -2, 32 * kUnit);
}

TEST(OptimizerMath, SkippedStepsAreTakenOff) {
  AdamWArgs args;
  args.lr = 0.01, args.step = 9;
  const AdamWCoefficients skipped = adamw_coefficients(args, 0.5F, 4);
  args.step = 5;
  const AdamWCoefficients counted = adamw_coefficients(args, 0.5F);
  EXPECT_EQ(skipped.step_size, counted.step_size);
  EXPECT_EQ(skipped.inv_sqrt_bias2, counted.inv_sqrt_bias2);
  EXPECT_FLOAT_EQ(skipped.step_size, static_cast<float>(0.01 / (1 - std::pow(0.9, 5))));
}

// [Note: exact sums], number by number: what the limbs hold is the number, down to 2^-320 and below 2^256.
TEST(ExactSumMath, LimbsOfANumberAreTheNumber) {
  std::vector<double> numbers{0, 1, 3, 0x1p-320, 0x1p255, 0x1.fffffffffffffp255, 0x1.23456789abcdep-300, 0x1.fffffffffffffp-268};
  for (int e = -330; e < 260; e += 7) numbers.push_back(std::ldexp(0x1.23456789abcdfp0, e));
  for (const double x : numbers) {
    std::array<std::int64_t, ExactSum::kLimbs> limbs{};
    for_each_limb(x, [&](std::int64_t k, std::int64_t units) {
      ASSERT_GE(units, 0);
      ASSERT_LT(units, std::int64_t{1} << 33);
      limbs.at(static_cast<std::size_t>(k)) += units;
    });
    if (x >= 0x1p256) {
      EXPECT_EQ(limbs[ExactSum::kInfinities], 1) << x;
      continue;
    }
    const double kept = std::ldexp(std::trunc(std::ldexp(x, 320)), -320);
    carry(limbs);
    EXPECT_EQ(exact_sum_value(limbs), x < 0x1p-268 ? kept : x) << x;
  }
  std::array<std::int64_t, ExactSum::kLimbs> limbs{};
  for (const double x : {0x1p256, static_cast<double>(kInf), std::nan("")}) {
    for_each_limb(x, [&](std::int64_t k, std::int64_t units) { limbs.at(static_cast<std::size_t>(k)) += units; });
  }
  EXPECT_EQ(limbs[ExactSum::kInfinities], 2);
  EXPECT_EQ(limbs[ExactSum::kNans], 1);
}

}  // namespace
}  // namespace mica
