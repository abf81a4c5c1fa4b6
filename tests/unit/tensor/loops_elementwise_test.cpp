// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <limits>

#include "loops_testing.hpp"

namespace mica {
namespace {
using testing::all_loops;
using testing::Array;
using testing::expect_same_bits_for_any_split;
using testing::kSplitNumel;
using testing::name_of;
using testing::normal_array;
using testing::ulps;

constexpr std::array kFloats{DType::f32, DType::bf16, DType::f16};

double exact_gelu(double x) { return x / (1 + std::exp(-2 * std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }
double exact_gelu_derivative(double x) {
  const double a = std::sqrt(2 / M_PI);
  const double s = 1 / (1 + std::exp(-2 * a * (x + 0.044715 * x * x * x)));
  return s + x * s * (1 - s) * 2 * a * (1 + 3 * 0.044715 * x * x);
}

// All exponents, every 997th mantissa: about 4 million numbers, subnormals, infinities and NaN among them.
TEST(ExpLoop, WithinOneUlpEverywhere) {
  std::vector<float> x;
  for (std::uint64_t u = 0; u < 0x100000000ULL; u += 997 * 3) x.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(u)));
  for (float v = -104.5F; v < 89.5F; v += 0.0007F) x.push_back(v);
  std::vector<float> y(x.size());
  for (const cpu::Loops* loops : all_loops()) {
    loops->exp(x.data(), y.data(), static_cast<std::int64_t>(x.size()));
    double worst = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const auto exact = std::exp(static_cast<double>(x[i]));
      const bool overflows = static_cast<float>(exact) > std::numeric_limits<float>::max();
      const double error = ulps(static_cast<double>(y[i]), overflows ? INFINITY : exact);
      ASSERT_LT(error, 1.1) << name_of(*loops) << " exp(" << x[i] << ") = " << y[i] << ", exact " << exact;
      worst = std::max(worst, error);
    }
    RecordProperty(name_of(*loops), std::to_string(worst));
  }
}

TEST(GeluLoop, MatchesDouble) {
  for (const cpu::Loops* loops : all_loops()) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      std::vector<double> values = testing::normals(20000, 1, 3);
      for (const double special : {0.0, -0.0, 1e-30, -1e-30, 1e-42, 20.0, -20.0, 3e38, -3e38, 1e15, -1e15, -13.5}) {
        values.push_back(special);
      }
      const Array x(dtype, values);
      const Array dy = normal_array(dtype, x.numel(), 2);
      Array y(dtype, x.numel()), dx(dtype, x.numel());
      loops->activation(Activation::gelu, dtype, x.data(), y.data(), 0, x.numel());
      loops->activation_backward(Activation::gelu, dtype, x.data(), dy.data(), dx.data(), 0, x.numel());
      const double rounding = dtype == DType::f32 ? 0 : 0.5;
      for (std::int64_t i = 0; i < x.numel(); ++i) {
        // For negative x the exponent -2u, about 8 where the result is 1e-3, is itself rounded.
        const double condition = 3 + (x[i] < 0 ? std::min(4 * std::abs(x[i] * x[i] * x[i]), 400.0) : 0);
        const double exact = exact_gelu(x[i]);
        if (std::abs(exact) > 1e-36 || x[i] == 0 || std::abs(y[i]) > 1e-36) {  // below, the result may be 0
          ASSERT_LT(ulps(y[i], exact, dtype), rounding + (dtype == DType::f32 ? condition : 0.1))
              << name_of(*loops) << " gelu(" << x[i] << ") = " << y[i] << " exact " << exact;
        }
        // Near x = -0.75 the derivative crosses zero, so the error is measured against 1.
        const double slope = std::abs(x[i]) > 20 ? (x[i] > 0 ? 1 : 0) : exact_gelu_derivative(x[i]);
        const double tolerance = 10 * 0x1p-24 * std::abs(dy[i]) + testing::subnormal_rounding(dtype) +
                                 std::abs(slope * dy[i]) * (dtype == DType::f32 ? 0 : 0x1p-8);
        ASSERT_NEAR(dx[i], dy[i] * slope, tolerance) << name_of(*loops) << " gelu'(" << x[i] << ")";
      }
    }
  }
}

TEST(GeluLoop, KeepsNaN) {
  const Array x(DType::f32, {std::nan(""), 1.0}), dy(DType::f32, {1.0, std::nan("")});
  for (const cpu::Loops* loops : all_loops()) {
    Array y(DType::f32, {0, 0}), dx(DType::f32, {0, 0});
    loops->activation(Activation::gelu, DType::f32, x.data(), y.data(), 0, 2);
    loops->activation_backward(Activation::gelu, DType::f32, x.data(), dy.data(), dx.data(), 0, 2);
    EXPECT_TRUE(std::isnan(y[0]) && !std::isnan(y[1]) && std::isnan(dx[0]) && std::isnan(dx[1])) << name_of(*loops);
  }
}

TEST(ActivationLoops, ReluSiluAndTanhMatchDouble) {
  struct Function {
    Activation f;
    double (*value)(double);
    double (*slope)(double);
    double ulps_of_value;   // relative to the value, whatever its size
    double units_of_slope;  // of 2^-24
  };
  const Function functions[] = {
      {Activation::relu, [](double x) { return x > 0 ? x : 0; }, [](double x) { return x > 0 ? 1.0 : 0.0; }, 0.01, 0},
      {Activation::silu, [](double x) { return x < -700 ? 0 : x / (1 + std::exp(-x)); },
       [](double x) {
         const double s = x < -700 ? 0 : 1 / (1 + std::exp(-x));
         return s + x * s * (1 - s);
       },
       4, 12},
      {Activation::tanh, [](double x) { return std::tanh(x); },
       [](double x) { return std::abs(x) > 300 ? 0 : 1 / std::pow(std::cosh(x), 2); }, 4, 12}};
  for (const cpu::Loops* loops : all_loops()) {
    for (const DType dtype : kFloats) {
      std::vector<double> values = testing::normals(20000, 1, 2);
      for (const double special : {0.0, -0.0, 1e-30, -1e-30, 1e-42, 0.625, -0.625, 9.9, 10.1, -10.1, 39.0, -41.0, 1e4, -1e4, -3e38}) {
        values.push_back(special);
      }
      const Array x(dtype, values);
      const std::int64_t n = x.numel();
      const Array dy = normal_array(dtype, n, 2);
      for (const Function& function : functions) {
        Array y(dtype, n), dx(dtype, n);
        loops->activation(function.f, dtype, x.data(), y.data(), 0, n);
        loops->activation_backward(function.f, dtype, x.data(), dy.data(), dx.data(), 0, n);
        for (std::int64_t i = 0; i < n; ++i) {
          if (std::isinf(x[i])) continue;  // -3e38 as f16
          const std::string what = fmt::format("{} activation {} of {}", name_of(*loops), static_cast<int>(function.f), x[i]);
          const double value = function.value(x[i]), slope = function.slope(x[i]);
          if (std::abs(value) > 1e-36 || std::abs(y[i]) > 1e-31) {  // below, the result may be 0
            ASSERT_LT(ulps(y[i], value, dtype), dtype == DType::f32 ? function.ulps_of_value : 0.6) << what;
          }
          const double rounding = dtype == DType::f32 ? 0x1p-24 : dtype == DType::bf16 ? 0x1p-8 : 0x1p-11;
          ASSERT_NEAR(dx[i], dy[i] * slope,
                      std::abs(dy[i]) * (function.units_of_slope * 0x1p-24 + rounding * std::abs(slope) + 1e-31) +
                          testing::subnormal_rounding(dtype))
              << what;
        }
      }
    }
    const Array odd(DType::f32, {std::nan(""), 1.0, -1.0}), dy(DType::f32, {1.0, std::nan(""), INFINITY});
    for (const Function& function : functions) {
      Array y(DType::f32, 3), dx(DType::f32, 3);
      loops->activation(function.f, DType::f32, odd.data(), y.data(), 0, 3);
      loops->activation_backward(function.f, DType::f32, odd.data(), dy.data(), dx.data(), 0, 3);
      EXPECT_TRUE(std::isnan(y[0]) && !std::isnan(y[1]) && std::isnan(dx[1])) << name_of(*loops);
      EXPECT_EQ(dx[2] == 0, function.f == Activation::relu) << "a ReLU that is off lets nothing through, the others infinity";
    }
  }
}

TEST(SwigluLoop, MatchesDouble) {
  for (const cpu::Loops* loops : all_loops()) {
    for (const DType dtype : kFloats) {
      std::vector<double> values = testing::normals(20000, 1, 4);
      for (const double special : {0.0, -0.0, 1e-30, -1e-30, 20.0, -20.0, 79.0, 81.0, -79.0, -81.0, -3e38, 1e4}) {
        values.push_back(special);
      }
      const Array gate(dtype, values);
      const std::int64_t n = gate.numel();
      const Array up = normal_array(dtype, n, 2), dy = normal_array(dtype, n, 3);
      Array y(dtype, n), dgate(dtype, n), dup(dtype, n);
      loops->swiglu(dtype, gate.data(), up.data(), y.data(), 0, n);
      loops->swiglu_backward(dtype, gate.data(), up.data(), dy.data(), dgate.data(), dup.data(), 0, n);
      for (std::int64_t i = 0; i < n; ++i) {
        if (std::isinf(gate[i])) continue;  // -3e38 as f16
        const double sigma = 1 / (1 + std::exp(-gate[i]));
        const double silu = gate[i] == 0 || sigma == 0 ? 0 : gate[i] * sigma;
        const double slope = sigma + silu * (1 - sigma);
        const double rounding = (dtype == DType::f32 ? 0 : dtype == DType::bf16 ? 0x1p-8 : 0x1p-11);
        // exp(-x) keeps its relative error, so silu does. The slope crosses zero near -1.28: measured against 1.
        const double silu_error = 4 * 0x1p-24 * std::abs(silu) + 1e-31, slope_error = 12 * 0x1p-24;
        const auto expect = [&](double seen, double factor, double exact, double error, const char* what) {
          const double tolerance =
              std::abs(factor) * error + (rounding + 0x1p-24) * std::abs(factor * exact) + testing::subnormal_rounding(dtype);
          ASSERT_NEAR(seen, factor * exact, tolerance) << name_of(*loops) << " " << what << " of " << gate[i];
        };
        expect(y[i], up[i], silu, silu_error, "silu");
        expect(dup[i], dy[i], silu, silu_error, "dup");
        expect(dgate[i], dy[i] * up[i], slope, slope_error, "dgate");
      }
      Array gate_alone(dtype, n), up_alone(dtype, n);
      loops->swiglu_backward(dtype, gate.data(), up.data(), dy.data(), gate_alone.data(), nullptr, 0, n);
      loops->swiglu_backward(dtype, gate.data(), up.data(), dy.data(), nullptr, up_alone.data(), 0, n);
      ASSERT_TRUE(gate_alone == dgate && up_alone == dup);
      Array nan(DType::f32, {std::nan(""), 1.0}), ones(DType::f32, {1.0, 1.0}), out(DType::f32, 2), other(DType::f32, 2);
      loops->swiglu_backward(DType::f32, nan.data(), ones.data(), ones.data(), out.data(), other.data(), 0, 1);
      ASSERT_TRUE(std::isnan(out[0]) && std::isnan(other[0]));
    }
  }
}

TEST(RotateHeadsLoop, ExactlyTheDefinitionOnEveryIsa) {
  for (const cpu::Loops* loops : all_loops()) {
    for (const DType dtype : kFloats) {
      for (const std::int64_t half : {1, 3, 4, 15, 16, 17, 40}) {
        constexpr std::int64_t heads = 3;
        const std::int64_t n = heads * 2 * half;
        const Array x = normal_array(dtype, n, 1), cos = normal_array(DType::f32, half, 2), sin = normal_array(DType::f32, half, 3);
        Array y(dtype, n), expected(dtype, n), in_place = x;
        loops->rotate_heads(dtype, x.data(), cos.floats(), sin.floats(), heads, half, y.data());
        loops->rotate_heads(dtype, in_place.data(), cos.floats(), sin.floats(), heads, half, in_place.data());
        for (std::int64_t head = 0; head < heads; ++head) {
          for (std::int64_t i = 0; i < half; ++i) {
            const std::int64_t first = head * 2 * half + i, second = first + half;
            const auto a = static_cast<float>(x[first]), b = static_cast<float>(x[second]);
            const float ac = a * cos.floats()[i], bs = b * sin.floats()[i], bc = b * cos.floats()[i], as = a * sin.floats()[i];
            expected.set(first, static_cast<double>(ac - bs));
            expected.set(second, static_cast<double>(bc + as));
          }
        }
        ASSERT_EQ(y, expected) << name_of(*loops) << " half " << half;
        ASSERT_EQ(in_place, expected) << name_of(*loops) << " half " << half;
      }
    }
  }
}

TEST(ElementwiseLoops, SameBitsForAnySplit) {
  for (const cpu::Loops* loops : all_loops()) {
    SCOPED_TRACE(name_of(*loops));
    for (const DType dtype : kFloats) {
      const Array a = normal_array(dtype, kSplitNumel, 1), b = normal_array(dtype, kSplitNumel, 2);
      const Array old = normal_array(dtype, kSplitNumel, 3);
      const void* sources[3] = {a.data(), b.data(), old.data()};
      expect_same_bits_for_any_split(
          old, [&](Array& y, std::int64_t begin, std::int64_t end) { loops->add(dtype, a.data(), b.data(), y.data(), begin, end); });
      expect_same_bits_for_any_split(
          old, [&](Array& y, std::int64_t begin, std::int64_t end) { loops->fold_sum(dtype, sources, 3, y.data(), begin, end); });
      expect_same_bits_for_any_split(
          old, [&](Array& y, std::int64_t begin, std::int64_t end) { loops->fold_max(dtype, sources, 3, y.data(), begin, end); });
      expect_same_bits_for_any_split(
          old, [&](Array& y, std::int64_t begin, std::int64_t end) { loops->fill(y.data(), dtype, 0.3, begin, end); });
      expect_same_bits_for_any_split(
          old, [&](Array& y, std::int64_t begin, std::int64_t end) { loops->swiglu(dtype, a.data(), b.data(), y.data(), begin, end); });
      expect_same_bits_for_any_split(b, [&](Array& dup, std::int64_t begin, std::int64_t end) {
        Array dgate(dtype, kSplitNumel);
        loops->swiglu_backward(dtype, a.data(), old.data(), dup.data(), dgate.data(), dup.data(), begin, end);
      });
      expect_same_bits_for_any_split(a, [&](Array& dgate, std::int64_t begin, std::int64_t end) {
        Array dup(dtype, kSplitNumel);
        loops->swiglu_backward(dtype, dgate.data(), old.data(), b.data(), dgate.data(), dup.data(), begin, end);
      });
      for (const DType other : kFloats) {
        const Array src = normal_array(other, kSplitNumel, 4);
        for (const Write mode : {Write::overwrite, Write::accumulate}) {
          expect_same_bits_for_any_split(old, [&](Array& y, std::int64_t begin, std::int64_t end) {
            loops->scale(src.data(), other, 0.7F, y.data(), dtype, mode, begin, end);
          });
        }
        expect_same_bits_for_any_split(
            old, [&](Array& y, std::int64_t begin, std::int64_t end) { loops->convert(src.data(), other, y.data(), dtype, begin, end); });
      }
      if (dtype == DType::f16) continue;
      for (const Activation f : {Activation::gelu, Activation::relu, Activation::silu, Activation::tanh}) {
        expect_same_bits_for_any_split(
            old, [&](Array& y, std::int64_t begin, std::int64_t end) { loops->activation(f, dtype, a.data(), y.data(), begin, end); });
        expect_same_bits_for_any_split(b, [&](Array& y, std::int64_t begin, std::int64_t end) {
          loops->activation_backward(f, dtype, a.data(), y.data(), y.data(), begin, end);  // in place
        });
      }
    }
  }
}

// These loops are used by the oracle's rivals and by collectives: exactly the definition, on every ISA.
TEST(ElementwiseLoops, ExactlyTheDefinition) {
  constexpr std::int64_t n = 1003;
  for (const cpu::Loops* loops : all_loops()) {
    SCOPED_TRACE(name_of(*loops));
    for (const DType dtype : kFloats) {
      const Array a = normal_array(dtype, n, 1), b = normal_array(dtype, n, 2), c = normal_array(dtype, n, 3);
      const auto f = [](double x) { return static_cast<float>(x); };
      Array sum(dtype, n), folded(dtype, n), largest(dtype, n), scaled(dtype, n), added = c;
      loops->add(dtype, a.data(), b.data(), sum.data(), 0, n);
      const void* sources[3] = {a.data(), b.data(), c.data()};
      loops->fold_sum(dtype, sources, 3, folded.data(), 0, n);
      loops->fold_max(dtype, sources, 3, largest.data(), 0, n);
      loops->scale(a.data(), dtype, 0.3F, scaled.data(), dtype, Write::overwrite, 0, n);
      loops->scale(a.data(), dtype, 0.3F, added.data(), dtype, Write::accumulate, 0, n);
      Array expected[5] = {{dtype, n}, {dtype, n}, {dtype, n}, {dtype, n}, {dtype, n}};
      for (std::int64_t i = 0; i < n; ++i) {
        expected[0].set(i, static_cast<double>(f(a[i]) + f(b[i])));
        expected[1].set(i, static_cast<double>((f(a[i]) + f(b[i])) + f(c[i])));
        expected[2].set(i, std::max({a[i], b[i], c[i]}));
        expected[3].set(i, static_cast<double>(0.3F * f(a[i])));
        const float product = 0.3F * f(a[i]);
        expected[4].set(i, static_cast<double>(f(c[i]) + product));
      }
      EXPECT_EQ(sum, expected[0]);
      EXPECT_EQ(folded, expected[1]);
      EXPECT_EQ(largest, expected[2]);
      EXPECT_EQ(scaled, expected[3]);
      EXPECT_EQ(added, expected[4]);
    }
  }
}

TEST(ConvertLoop, AllHalvesAndEveryRoundingAsTheScalarTypes) {
  std::vector<float> floats;
  for (std::uint64_t u = 0; u < 0x100000000ULL; u += 4099) floats.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(u)));
  for (std::uint32_t h = 0; h < 0x10000; ++h) {  // each half number, the ties around it, and their neighbours
    for (const std::uint32_t low : {0U, 1U, 0x7fffU, 0x8000U, 0x8001U, 0xffffU}) floats.push_back(std::bit_cast<float>((h << 16) | low));
    f16 half;
    half.bits = static_cast<std::uint16_t>(h);
    const auto u = std::bit_cast<std::uint32_t>(static_cast<float>(half));
    for (const std::uint32_t low : {0U, 0xfffU, 0x1000U, 0x1001U}) floats.push_back(std::bit_cast<float>(u + low));
  }
  const auto n = static_cast<std::int64_t>(floats.size());
  std::vector<std::uint16_t> words(floats.size()), all(0x10000);
  for (std::uint32_t h = 0; h < 0x10000; ++h) all[h] = static_cast<std::uint16_t>(h);
  std::vector<float> widened(0x10000);
  for (const cpu::Loops* loops : all_loops()) {
    SCOPED_TRACE(name_of(*loops));
    loops->convert(floats.data(), DType::f32, words.data(), DType::bf16, 0, n);
    for (std::size_t i = 0; i < floats.size(); ++i) ASSERT_EQ(words[i], bf16(floats[i]).bits) << floats[i];
    loops->convert(floats.data(), DType::f32, words.data(), DType::f16, 0, n);
    for (std::size_t i = 0; i < floats.size(); ++i) ASSERT_EQ(words[i], f16(floats[i]).bits) << floats[i];
    for (const DType dtype : {DType::bf16, DType::f16}) {
      loops->convert(all.data(), dtype, widened.data(), DType::f32, 0, 0x10000);
      for (std::size_t i = 0; i < all.size(); ++i) {
        bf16 b;
        f16 h;
        b.bits = h.bits = all[i];
        const float exact = dtype == DType::bf16 ? static_cast<float>(b) : static_cast<float>(h);
        ASSERT_EQ(std::bit_cast<std::uint32_t>(widened[i]), std::bit_cast<std::uint32_t>(exact)) << i;
      }
    }
  }
}

TEST(FoldLoop, OrderNaNAndAliases) {
  for (const cpu::Loops* loops : all_loops()) {
    SCOPED_TRACE(name_of(*loops));
    for (const std::int64_t n : {1, 130}) {
      // (1e8 + 1) - 1e8 is 0 in f32 and 1 from the other end: the order is the sources'.
      Array big(DType::f32, std::vector<double>(static_cast<std::size_t>(n), 1e8));
      Array one(DType::f32, std::vector<double>(static_cast<std::size_t>(n), 1));
      const Array minus(DType::f32, std::vector<double>(static_cast<std::size_t>(n), -1e8));
      Array nan = one;
      nan.set(n - 1, std::nan(""));
      const void* sources[3] = {one.data(), big.data(), minus.data()};
      Array sum(DType::f32, n);
      loops->fold_sum(DType::f32, sources, 3, sum.data(), 0, n);
      EXPECT_EQ(sum[n - 1], 0);
      const void* other_order[3] = {big.data(), minus.data(), one.data()};
      loops->fold_sum(DType::f32, other_order, 3, big.data(), 0, n);  // into a source
      EXPECT_EQ(big[0], 1);
      loops->fold_sum(DType::f32, nullptr, 0, sum.data(), 0, n);
      EXPECT_EQ(sum[0], 0);
      for (const bool first : {true, false}) {
        const void* with_nan[2] = {first ? nan.data() : one.data(), first ? one.data() : nan.data()};
        loops->fold_max(DType::f32, with_nan, 2, sum.data(), 0, n);
        EXPECT_TRUE(std::isnan(sum[n - 1]));
      }
    }
  }
}

TEST(FillLoop, EveryDType) {
  for (const cpu::Loops* loops : all_loops()) {
    const auto check = [&]<class T>(T expected, double value) {
      std::vector<T> x(37, T(5));
      loops->fill(x.data(), dtype_of<T>::value, value, 1, 36);
      EXPECT_EQ(x[0], T(5));
      EXPECT_EQ(x[36], T(5));
      for (std::size_t i = 1; i < 36; ++i) ASSERT_EQ(x[i], expected);
    };
    check(-2.5F, -2.5);
    check(-2.5, -2.5);
    check(std::int64_t{-7}, -7);
    check(std::int32_t{-7}, -7);
    check(std::uint16_t{7}, 7);
    check(std::uint8_t{7}, 7);
  }
}

}  // namespace
}  // namespace mica
