// SPDX-License-Identifier: Apache-2.0
#include "loops_testing.hpp"

namespace mica {
namespace {
using testing::all_loops;
using testing::Array;
using testing::name_of;
using testing::normal_array;

constexpr double kEps = 0x1p-24;

AdamWArgs adamw_args(std::int64_t step) {
  AdamWArgs args;
  args.lr = 1e-2, args.beta1 = 0.9, args.beta2 = 0.95, args.eps = 1e-8, args.weight_decay = 0.1, args.step = step;
  return args;
}

TEST(AdamWLoop, MatchesDouble) {
  constexpr std::int64_t n = 1001;
  for (const cpu::Loops* loops : all_loops()) {
    SCOPED_TRACE(name_of(*loops));
    for (const std::int64_t step : {1, 7, 100000}) {
      const AdamWArgs args = adamw_args(step);
      const Array p0 = normal_array(DType::f32, n, 1), g = normal_array(DType::f32, n, 2);
      const Array m0 = normal_array(DType::f32, n, 3);
      Array v0 = normal_array(DType::f32, n, 4);
      for (std::int64_t i = 0; i < n; ++i) v0.set(i, v0[i] * v0[i]);
      Array p = p0, m = m0, v = v0;
      loops->adamw(adamw_coefficients(args, 0.5F), {}, p.floats(), g.floats(), m.data(), v.data(), 0, n);
      for (std::int64_t i = 0; i < n; ++i) {
        const double gi = 0.5 * g[i];
        const double em = 0.9 * m0[i] + 0.1 * gi, ev = 0.95 * v0[i] + 0.05 * gi * gi;
        const double bias1 = 1 - std::pow(0.9, static_cast<double>(step)), bias2 = 1 - std::pow(0.95, static_cast<double>(step));
        const double update = 1e-2 * (em / bias1) / (std::sqrt(ev / bias2) + 1e-8);
        ASSERT_NEAR(m[i], em, 4 * kEps * (std::abs(m0[i]) + std::abs(gi)));
        ASSERT_NEAR(v[i], ev, 4 * kEps * ev);
        const double size = 1e-2 * (std::abs(m0[i]) + std::abs(gi)) / bias1 / std::sqrt(ev / bias2);
        ASSERT_NEAR(p[i], p0[i] * (1 - 1e-3) - update, 2 * kEps * std::abs(p0[i]) + 12 * kEps * size) << i;
      }
    }
  }
}

TEST(SgdLoop, MatchesDouble) {
  constexpr std::int64_t n = 501;
  for (const cpu::Loops* loops : all_loops()) {
    for (int variant = 0; variant < 8; ++variant) {
      SCOPED_TRACE(std::string(name_of(*loops)) + " variant " + std::to_string(variant));
      SgdArgs args;
      args.lr = 0.1, args.weight_decay = 0.01;
      args.momentum = variant & 1 ? 0.9 : 0.0, args.dampening = variant & 1 && variant < 4 ? 0.3 : 0.0;
      args.nesterov = variant & 4, args.first_step = variant & 2;
      const Array p0 = normal_array(DType::f32, n, 1), g = normal_array(DType::f32, n, 2), b0 = normal_array(DType::f32, n, 3);
      Array p = p0, b = b0;
      loops->sgd(sgd_coefficients(args, 2.0F), {}, p.floats(), g.floats(), args.momentum == 0 ? nullptr : b.data(), 0, n);
      for (std::int64_t i = 0; i < n; ++i) {
        const double d = 2 * g[i] + 0.01 * p0[i];
        const double buffer = args.first_step ? d : args.momentum * b0[i] + (1 - args.dampening) * d;
        const double update = args.momentum == 0 ? d : args.nesterov ? d + args.momentum * buffer : buffer;
        ASSERT_NEAR(p[i], p0[i] - 0.1 * update, 2 * kEps * (std::abs(p0[i]) + std::abs(d) + std::abs(b0[i])));
        ASSERT_NEAR(b[i], args.momentum == 0 ? b0[i] : buffer, 4 * kEps * (std::abs(d) + std::abs(b0[i])));
      }
    }
  }
}

/// The formats below fp32: of the first moment, of the second.
struct Narrow {
  DType moment, square;
  double quantum;  // distance of neighbours, relative to the lower one, at most
};
constexpr Narrow kNarrow[] = {{DType::bf16, DType::bf16, 0x1p-7}, {DType::moment8, DType::square8, 0.25}};

Array squares_of(const Array& m, DType dtype) {
  Array v(dtype, m.numel());
  for (std::int64_t i = 0; i < m.numel(); ++i) v.set(i, m[i] * m[i]);
  return v;
}
Array in_f32(const Array& x) {
  Array wide(DType::f32, x.numel());
  for (std::int64_t i = 0; i < x.numel(); ++i) wide.set(i, x[i]);
  return wide;
}

// The step itself is that of fp32, and its moments come next to where fp32's are: the neighbour below or above.
TEST(NarrowMoments, AreFp32sRoundedUpOrDown) {
  constexpr std::int64_t n = 1001;
  for (const cpu::Loops* loops : all_loops()) {
    for (const Narrow& narrow : kNarrow) {
      SCOPED_TRACE(std::string(name_of(*loops)) + " " + std::string(dtype_name(narrow.moment)));
      const AdamWCoefficients coefficients = adamw_coefficients(adamw_args(9), 0.5F);
      const Array g = normal_array(DType::f32, n, 2);
      Array p = normal_array(DType::f32, n, 1), m = normal_array(narrow.moment, n, 3), v = squares_of(m, narrow.square);
      Array expected_p = p, expected_m = in_f32(m), expected_v = in_f32(v);
      loops->adamw(coefficients, {narrow.moment, 9}, p.floats(), g.floats(), m.data(), v.data(), 0, n);
      loops->adamw(coefficients, {}, expected_p.floats(), g.floats(), expected_m.data(), expected_v.data(), 0, n);
      EXPECT_EQ(p, expected_p);
      std::int64_t num_up = 0;
      for (std::int64_t i = 0; i < n; ++i) {
        ASSERT_LE(std::abs(m[i] - expected_m[i]), narrow.quantum * std::abs(expected_m[i])) << i;
        ASSERT_LE(std::abs(v[i] - expected_v[i]), narrow.quantum * expected_v[i]) << i;
        num_up += std::abs(m[i]) > std::abs(expected_m[i]) ? 1 : 0;
      }
      EXPECT_NEAR(static_cast<double>(num_up), 0.5 * n, 0.1 * n);
      SgdCoefficients sgd;
      sgd.lr = 0.1F, sgd.momentum = 0.9F, sgd.weight_decay = 0.01F;
      Array buffer = normal_array(narrow.moment, n, 4), expected_buffer = in_f32(buffer);
      loops->sgd(sgd, {narrow.moment}, p.floats(), g.floats(), buffer.data(), 0, n);
      loops->sgd(sgd, {}, expected_p.floats(), g.floats(), expected_buffer.data(), 0, n);
      EXPECT_EQ(p, expected_p);
      for (std::int64_t i = 0; i < n; ++i) {
        ASSERT_LE(std::abs(buffer[i] - expected_buffer[i]), narrow.quantum * std::abs(expected_buffer[i])) << i;
      }
    }
  }
}

// With beta2 = 0.999 a second moment falls by 0.1 % a step. Rounded to nearest, none would ever move. The noise must differ between
// the elements and the steps, and between the two moments of an element. [Note: length of steps]: what counts is the mean of 1/sqrt(v).
TEST(NarrowMoments, StepsAreAsLongAsFp32sOnAverage) {
  constexpr std::int64_t n = 4000, kSteps = 500;
  for (const auto& [beta2, tolerance] : {std::pair{0.99, 0.01}, {0.999, 0.02}}) {  // at 0.999, v still falls when the steps end
    AdamWArgs args = adamw_args(1);
    args.beta2 = beta2;
    for (const cpu::Loops* loops : all_loops()) {
      for (const Narrow& narrow : kNarrow) {
        SCOPED_TRACE(fmt::format("{} {} beta2 {}", name_of(*loops), dtype_name(narrow.moment), beta2));
        const std::vector<double> zeros(n, 0.0), ones(n, 1.0);
        Array p = normal_array(DType::f32, n, 1), m(narrow.moment, zeros), v(narrow.square, ones);
        Array plain_p = p, plain_m(DType::f32, zeros), plain_v(DType::f32, ones);
        for (args.step = 1; args.step <= kSteps; ++args.step) {
          const Array g = normal_array(DType::f32, n, 10 + static_cast<unsigned>(args.step), 0.25);
          const AdamWCoefficients coefficients = adamw_coefficients(args, 1);
          loops->adamw(coefficients, {narrow.moment, static_cast<std::uint32_t>(args.step)}, p.floats(), g.floats(), m.data(), v.data(), 0,
                       n);
          loops->adamw(coefficients, {}, plain_p.floats(), g.floats(), plain_m.data(), plain_v.data(), 0, n);
        }
        double sum = 0, plain_sum = 0;
        for (std::int64_t i = 0; i < n; ++i) sum += 1 / std::sqrt(v[i]), plain_sum += 1 / std::sqrt(plain_v[i]);
        EXPECT_NEAR(sum / plain_sum, 1, tolerance);
      }
    }
  }
}

TEST(NarrowMoments, KeepNans) {
  for (const cpu::Loops* loops : all_loops()) {
    for (const Narrow& narrow : kNarrow) {
      for (const std::int64_t n : {1, 21}) {
        const std::vector<double> nans(static_cast<std::size_t>(n), std::nan("")), ones(static_cast<std::size_t>(n), 1.0);
        Array p(DType::f32, ones), m(narrow.moment, ones), v(narrow.square, ones);
        const Array g(DType::f32, nans);
        loops->adamw(adamw_coefficients(adamw_args(2), 1), {narrow.moment, 2}, p.floats(), g.floats(), m.data(), v.data(), 0, n);
        for (std::int64_t i = 0; i < n; ++i) EXPECT_TRUE(std::isnan(m[i]) && std::isnan(v[i])) << i;
      }
    }
  }
}

TEST(NarrowMoments, SameBitsForAnySplitAndOnEveryIsa) {
  const std::int64_t n = testing::kSplitNumel;
  const Array p = normal_array(DType::f32, n, 1), g = normal_array(DType::f32, n, 2);
  const AdamWCoefficients adamw = adamw_coefficients(adamw_args(3), 0.7F);
  SgdCoefficients sgd;
  sgd.lr = 0.1F, sgd.momentum = 0.9F;
  for (const Narrow& narrow : kNarrow) {
    const Array m = normal_array(narrow.moment, n, 3), v = squares_of(m, narrow.square);
    std::vector<Array> moments, squares, momenta;
    for (const cpu::Loops* loops : all_loops()) {
      SCOPED_TRACE(std::string(name_of(*loops)) + " " + std::string(dtype_name(narrow.moment)));
      const auto run_moment = [&](Array& out, std::int64_t begin, std::int64_t end) {
        Array master = p, square = v;
        loops->adamw(adamw, {narrow.moment, 3}, master.floats(), g.floats(), out.data(), square.data(), begin, end);
      };
      const auto run_square = [&](Array& out, std::int64_t begin, std::int64_t end) {
        Array master = p, moment = m;
        loops->adamw(adamw, {narrow.moment, 3}, master.floats(), g.floats(), moment.data(), out.data(), begin, end);
      };
      const auto run_sgd = [&](Array& out, std::int64_t begin, std::int64_t end) {
        Array master = p;
        loops->sgd(sgd, {narrow.moment}, master.floats(), g.floats(), out.data(), begin, end);
      };
      testing::expect_same_bits_for_any_split(m, run_moment);
      testing::expect_same_bits_for_any_split(v, run_square);
      testing::expect_same_bits_for_any_split(m, run_sgd);
      run_moment(moments.emplace_back(m), 0, n);
      run_square(squares.emplace_back(v), 0, n);
      run_sgd(momenta.emplace_back(m), 0, n);
      EXPECT_EQ(moments.front(), moments.back());
      EXPECT_EQ(squares.front(), squares.back());
      EXPECT_EQ(momenta.front(), momenta.back());
    }
  }
}

// Shard borders move with the mesh, and a run may move to another processor: neither may change a parameter's bits.
TEST(OptimizerLoops, SameBitsForAnySplitAndOnEveryIsa) {
  const std::int64_t n = testing::kSplitNumel;
  const Array p = normal_array(DType::f32, n, 1), g = normal_array(DType::f32, n, 2), m = normal_array(DType::f32, n, 3);
  Array v(DType::f32, n);
  for (std::int64_t i = 0; i < n; ++i) v.set(i, m[i] * m[i]);
  const AdamWCoefficients adamw = adamw_coefficients(adamw_args(3), 0.7F);
  SgdCoefficients sgd;
  sgd.lr = 0.1F, sgd.momentum = 0.9F, sgd.nesterov = true, sgd.weight_decay = 0.01F;
  std::vector<Array> adamw_results, sgd_results;
  for (const cpu::Loops* loops : all_loops()) {
    SCOPED_TRACE(name_of(*loops));
    const auto run_adamw = [&](Array& out, std::int64_t begin, std::int64_t end) {
      Array moments = m, squares = v;
      loops->adamw(adamw, {}, out.floats(), g.floats(), moments.data(), squares.data(), begin, end);
    };
    const auto run_sgd = [&](Array& out, std::int64_t begin, std::int64_t end) {
      Array momentum = m;
      loops->sgd(sgd, {}, out.floats(), g.floats(), momentum.data(), begin, end);
    };
    testing::expect_same_bits_for_any_split(p, run_adamw);
    testing::expect_same_bits_for_any_split(p, run_sgd);
    run_adamw(adamw_results.emplace_back(p), 0, n);
    run_sgd(sgd_results.emplace_back(p), 0, n);
    EXPECT_EQ(adamw_results.front(), adamw_results.back());
    EXPECT_EQ(sgd_results.front(), sgd_results.back());
  }
}

}  // namespace
}  // namespace mica
