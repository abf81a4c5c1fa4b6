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
      loops->adamw(adamw_coefficients(args, 0.5F), p.floats(), g.floats(), m.floats(), v.floats(), 0, n);
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
      loops->sgd(sgd_coefficients(args, 2.0F), p.floats(), g.floats(), args.momentum == 0 ? nullptr : b.floats(), 0, n);
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
      loops->adamw(adamw, out.floats(), g.floats(), moments.floats(), squares.floats(), begin, end);
    };
    const auto run_sgd = [&](Array& out, std::int64_t begin, std::int64_t end) {
      Array momentum = m;
      loops->sgd(sgd, out.floats(), g.floats(), momentum.floats(), begin, end);
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
