// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "mica/tensor/exact_sum.hpp"

#include "loops_testing.hpp"

namespace mica {
namespace {
using testing::all_loops;
using testing::Array;
using testing::name_of;
using testing::normal_array;

constexpr double kRowEps = 0x1p-24;
double eps_of(DType dtype) { return dtype == DType::f32 ? kRowEps : 0x1p-8 + kRowEps; }

constexpr std::array<std::int64_t, 11> kLengths{1, 2, 3, 7, 15, 16, 17, 63, 100, 768, 3001};

struct NormRow {
  double mean = 0, rstd = 0;
};
NormRow exact_norm(const Array& x, std::int64_t row, std::int64_t cols) {
  NormRow r;
  for (std::int64_t j = 0; j < cols; ++j) r.mean += x[row * cols + j] / static_cast<double>(cols);
  double v = 0;
  for (std::int64_t j = 0; j < cols; ++j) v += std::pow(x[row * cols + j] - r.mean, 2) / static_cast<double>(cols);
  r.rstd = 1 / std::sqrt(v + 1e-5);
  return r;
}

/// Normal rows far away from zero: cancellation shows.
Array offset_rows(DType dtype, std::int64_t n, double offset) {
  std::vector<double> v = testing::normals(n, 11, 2);
  for (double& e : v) e += offset;
  return {dtype, v};
}

TEST(LayerNormLoop, MatchesDouble) {
  constexpr std::int64_t rows = 5;
  for (const cpu::Loops* loops : all_loops()) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      for (const std::int64_t cols : kLengths) {
        for (const double offset : {0.0, 1000.0}) {
          SCOPED_TRACE(std::string(name_of(*loops)) + " cols " + std::to_string(cols) + " offset " + std::to_string(offset));
          const Array x = offset_rows(dtype, rows * cols, offset);
          const Array gamma = normal_array(dtype, cols, 2), beta = normal_array(dtype, cols, 3);
          Array y(dtype, rows * cols), mean(DType::f32, rows), rstd(DType::f32, rows);
          loops->layer_norm(dtype, x.data(), gamma.data(), beta.data(), 1e-5, cols, y.data(), mean.floats(), rstd.floats(), 0, rows);
          for (std::int64_t i = 0; i < rows; ++i) {
            const NormRow exact = exact_norm(x, i, cols);
            ASSERT_NEAR(mean[i], exact.mean, 8 * kRowEps * (std::abs(exact.mean) + 1));
            ASSERT_NEAR(rstd[i] / exact.rstd, 1, 8 * kRowEps);
            for (std::int64_t j = 0; j < cols; ++j) {
              const double normalised = (x[i * cols + j] - exact.mean) * exact.rstd;
              const double expected = normalised * gamma[j] + beta[j];
              const double size = std::abs(normalised * gamma[j]) + std::abs(beta[j]);
              // Whatever the offset: x - mean is exact near the mean, and the mean's own rounding is corrected.
              const double shift = 4 * kRowEps * std::abs(gamma[j]);
              ASSERT_NEAR(y[i * cols + j], expected, 12 * kRowEps * size + shift + (eps_of(dtype) - kRowEps) * std::abs(expected));
            }
          }
          // A row alone gives the bits it has among others, with and without its statistics.
          Array alone(dtype, rows * cols);
          for (std::int64_t i = 0; i < rows; ++i) {
            loops->layer_norm(dtype, x.data(), gamma.data(), beta.data(), 1e-5, cols, alone.data(), nullptr, nullptr, i, i + 1);
          }
          ASSERT_EQ(alone, y);
        }
      }
    }
  }
}

TEST(LayerNormLoop, ConstantAndNaNRows) {
  for (const cpu::Loops* loops : all_loops()) {
    const Array x(DType::f32, {0.1, 0.1, 0.1, std::nan(""), 1, 2});
    const Array gamma(DType::f32, {1, 1, 1}), beta(DType::f32, {7, 7, 7});
    Array y(DType::f32, 6), mean(DType::f32, 2), rstd(DType::f32, 2);
    loops->layer_norm(DType::f32, x.data(), gamma.data(), beta.data(), 1e-5, 3, y.data(), mean.floats(), rstd.floats(), 0, 2);
    for (std::int64_t i = 0; i < 3; ++i) EXPECT_NEAR(y[i], 7, 1e-4);
    EXPECT_NEAR(rstd[0], 1 / std::sqrt(1e-5), 0.01);
    for (std::int64_t i = 3; i < 6; ++i) EXPECT_TRUE(std::isnan(y[i]));
    EXPECT_TRUE(std::isnan(rstd[1]));
  }
}

TEST(LayerNormBackwardLoop, MatchesDouble) {
  constexpr std::int64_t rows = 7;
  for (const cpu::Loops* loops : all_loops()) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      for (const std::int64_t cols : kLengths) {
        for (const Write mode : {Write::overwrite, Write::accumulate}) {
          SCOPED_TRACE(std::string(name_of(*loops)) + " cols " + std::to_string(cols));
          const Array x = normal_array(dtype, rows * cols, 1), dy = normal_array(dtype, rows * cols, 2);
          const Array gamma = normal_array(dtype, cols, 3);
          const Array old = normal_array(dtype, rows * cols, 4), old_params = normal_array(DType::f32, cols, 5);
          Array mean(DType::f32, rows), rstd(DType::f32, rows);
          for (std::int64_t i = 0; i < rows; ++i) {
            mean.set(i, exact_norm(x, i, cols).mean);
            rstd.set(i, exact_norm(x, i, cols).rstd);
          }
          Array dx = old, dgamma = old_params, dbeta = old_params;
          if (mode == Write::overwrite) dx = Array(dtype, rows * cols);
          loops->layer_norm_backward(dtype, dy.data(), x.data(), gamma.data(), mean.floats(), rstd.floats(), cols, dx.data(), mode,
                                     dgamma.floats(), dbeta.floats(), 0, rows);
          std::vector<double> dg(static_cast<std::size_t>(cols)), db(static_cast<std::size_t>(cols));
          for (std::int64_t i = 0; i < rows; ++i) {
            double mean_g = 0, mean_gx = 0, size = 0;
            for (std::int64_t j = 0; j < cols; ++j) {
              const std::int64_t at = i * cols + j;
              const double n = (x[at] - mean[i]) * rstd[i];
              mean_g += dy[at] * gamma[j] / static_cast<double>(cols);
              mean_gx += dy[at] * gamma[j] * n / static_cast<double>(cols);
              size = std::max(size, std::abs(dy[at] * gamma[j]) * (1 + n * n));
              dg[static_cast<std::size_t>(j)] += dy[at] * n;
              db[static_cast<std::size_t>(j)] += dy[at];
            }
            for (std::int64_t j = 0; j < cols; ++j) {
              const std::int64_t at = i * cols + j;
              const double n = (x[at] - mean[i]) * rstd[i];
              const double expected = rstd[i] * (dy[at] * gamma[j] - mean_g - n * mean_gx) + (mode == Write::accumulate ? old[at] : 0);
              ASSERT_NEAR(dx[at], expected, 30 * kRowEps * rstd[i] * (size + 1) + 2 * eps_of(dtype) * std::abs(expected));
            }
          }
          for (std::int64_t j = 0; j < cols; ++j) {
            ASSERT_NEAR(dgamma[j], old_params[j] + dg[static_cast<std::size_t>(j)], 100 * kRowEps);
            ASSERT_NEAR(dbeta[j], old_params[j] + db[static_cast<std::size_t>(j)], 100 * kRowEps);
          }
          // dx over dy, row by row, and each output alone: the same bits of dx.
          if (mode == Write::overwrite) {
            Array in_place = dy;
            loops->layer_norm_backward(dtype, in_place.data(), x.data(), gamma.data(), mean.floats(), rstd.floats(), cols, in_place.data(),
                                       mode, nullptr, nullptr, 0, 3);
            loops->layer_norm_backward(dtype, in_place.data(), x.data(), gamma.data(), mean.floats(), rstd.floats(), cols, in_place.data(),
                                       mode, dgamma.floats(), dbeta.floats(), 3, rows);
            ASSERT_EQ(in_place, dx);
            Array only_gamma = old_params, only_beta = old_params, together_gamma = old_params, together_beta = old_params;
            loops->layer_norm_backward(dtype, dy.data(), x.data(), gamma.data(), mean.floats(), rstd.floats(), cols, nullptr, mode,
                                       only_gamma.floats(), only_beta.floats(), 0, rows);
            loops->layer_norm_backward(dtype, dy.data(), x.data(), gamma.data(), mean.floats(), rstd.floats(), cols, dx.data(), mode,
                                       together_gamma.floats(), together_beta.floats(), 0, rows);
            ASSERT_EQ(only_gamma, together_gamma);
            ASSERT_EQ(only_beta, together_beta);
          }
        }
      }
    }
  }
}

TEST(RmsNormLoop, MatchesDouble) {
  constexpr std::int64_t rows = 7;
  for (const cpu::Loops* loops : all_loops()) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      for (const std::int64_t cols : kLengths) {
        SCOPED_TRACE(std::string(name_of(*loops)) + " cols " + std::to_string(cols));
        const Array x = normal_array(dtype, rows * cols, 1, 3), gamma = normal_array(dtype, cols, 2);
        const Array dy = normal_array(dtype, rows * cols, 3), old = normal_array(dtype, rows * cols, 4);
        const Array old_param = normal_array(DType::f32, cols, 5);
        Array y(dtype, rows * cols), alone(dtype, rows * cols), rstd(DType::f32, rows);
        loops->rms_norm(dtype, x.data(), gamma.data(), 1e-5, cols, y.data(), rstd.floats(), 0, rows);
        for (std::int64_t i = 0; i < rows; ++i) {  // a row alone, without its statistic: the same bits
          loops->rms_norm(dtype, x.data(), gamma.data(), 1e-5, cols, alone.data(), nullptr, i, i + 1);
        }
        ASSERT_EQ(alone, y);
        Array dx(dtype, rows * cols), added = old, in_place = dy, dgamma = old_param, dgamma_alone = old_param;
        loops->rms_norm_backward(dtype, dy.data(), x.data(), gamma.data(), rstd.floats(), cols, dx.data(), Write::overwrite,
                                 dgamma.floats(), 0, rows);
        loops->rms_norm_backward(dtype, dy.data(), x.data(), gamma.data(), rstd.floats(), cols, added.data(), Write::accumulate, nullptr, 0,
                                 rows);
        for (const auto& [begin, end] : {std::pair<std::int64_t, std::int64_t>{0, 3}, {3, rows}}) {
          loops->rms_norm_backward(dtype, in_place.data(), x.data(), gamma.data(), rstd.floats(), cols, in_place.data(), Write::overwrite,
                                   nullptr, begin, end);
        }
        loops->rms_norm_backward(dtype, dy.data(), x.data(), gamma.data(), rstd.floats(), cols, nullptr, Write::overwrite,
                                 dgamma_alone.floats(), 0, rows);
        ASSERT_EQ(in_place, dx);
        ASSERT_EQ(dgamma_alone, dgamma);

        std::vector<double> dg(static_cast<std::size_t>(cols));
        for (std::int64_t i = 0; i < rows; ++i) {
          double square = 0, mean = 0, size = 0;
          for (std::int64_t j = 0; j < cols; ++j) square += std::pow(x[i * cols + j], 2) / static_cast<double>(cols);
          const double r = 1 / std::sqrt(square + 1e-5);
          ASSERT_NEAR(rstd[i] / r, 1, 8 * kRowEps);
          for (std::int64_t j = 0; j < cols; ++j) {
            const std::int64_t at = i * cols + j;
            const double n = x[at] * r;
            ASSERT_NEAR(y[at], n * gamma[j], (12 * kRowEps + eps_of(dtype)) * std::abs(n * gamma[j]) + 1e-7);
            mean += dy[at] * gamma[j] * n / static_cast<double>(cols);
            size = std::max(size, std::abs(dy[at] * gamma[j]) * (1 + n * n));
            dg[static_cast<std::size_t>(j)] += dy[at] * n;
          }
          for (std::int64_t j = 0; j < cols; ++j) {
            const std::int64_t at = i * cols + j;
            const double expected = r * (dy[at] * gamma[j] - x[at] * r * mean);
            const double error = 30 * kRowEps * r * (size + 1) + testing::subnormal_rounding(dtype);
            ASSERT_NEAR(dx[at], expected, error + 2 * eps_of(dtype) * std::abs(expected));
            ASSERT_NEAR(added[at], expected + old[at], error + 2 * eps_of(dtype) * std::abs(expected + old[at]));
          }
        }
        for (std::int64_t j = 0; j < cols; ++j) {
          ASSERT_NEAR(dgamma[j], old_param[j] + dg[static_cast<std::size_t>(j)], 100 * kRowEps);
        }
      }
    }
    const Array x(DType::f32, {0.0, 0.0, 0.0, std::nan(""), 1, 2}), gamma(DType::f32, {1, 1, 1});
    Array y(DType::f32, 6), rstd(DType::f32, 2);
    loops->rms_norm(DType::f32, x.data(), gamma.data(), 1e-6, 3, y.data(), rstd.floats(), 0, 2);
    for (std::int64_t i = 0; i < 3; ++i) EXPECT_EQ(y[i], 0);
    EXPECT_NEAR(rstd[0], 1000, 0.01);
    for (std::int64_t i = 3; i < 6; ++i) EXPECT_TRUE(std::isnan(y[i]));
  }
}

TEST(SumLoops, MatchDouble) {
  for (const cpu::Loops* loops : all_loops()) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      for (const std::int64_t n : kLengths) {
        SCOPED_TRACE(std::string(name_of(*loops)) + " n " + std::to_string(n));
        const Array x = normal_array(dtype, n + 1, 1), y = normal_array(dtype, n + 1, 2);
        double max = 0;
        for (const double p : {1.0, 2.0, 3.0, 0.5}) {
          double exact = 0;
          for (std::int64_t i = 1; i <= n; ++i) exact += std::pow(std::abs(x[i]), p), max = std::max(max, std::abs(x[i]));
          ASSERT_NEAR(loops->power_sum(dtype, x.data(), p, 1, n + 1) / exact, 1, 1e-13) << "p = " << p;
        }
        ASSERT_EQ(static_cast<double>(loops->abs_max(dtype, x.data(), 1, n + 1)), max);
        std::array<std::int64_t, ExactSum::kLimbs> limbs{}, of_v2{};
        loops->exact_power_sum(dtype, x.data(), 2, 1, n + 1, limbs.data());
        cpu::loops_of(cpu::Isa::v2)->exact_power_sum(dtype, x.data(), 2, 1, n + 1, of_v2.data());
        carry(limbs);
        carry(of_v2);
        ASSERT_EQ(limbs, of_v2);
        ASSERT_EQ(loops->power_sum(dtype, x.data(), 2, 1, 1), 0);
        ASSERT_EQ(loops->abs_max(dtype, x.data(), 1, 1), 0);
        Array nan = x;
        nan.set(n, std::nan(""));
        ASSERT_TRUE(std::isnan(loops->abs_max(dtype, nan.data(), 0, n + 1)));
        ASSERT_TRUE(std::isnan(loops->power_sum(dtype, nan.data(), 2, 0, n + 1)));
        if (dtype == DType::f16) continue;
        double dot = 0, size = 0;
        for (std::int64_t i = 0; i < n; ++i) dot += x[i] * y[i], size += std::abs(x[i] * y[i]);
        ASSERT_NEAR(static_cast<double>(loops->dot(dtype, x.data(), dtype, y.data(), n)), dot, 20 * kRowEps * size);
      }
    }
    const Array f(DType::f32, {1.5, 2.5}), b(DType::bf16, {2.0, 4.0});
    EXPECT_EQ(loops->dot(DType::f32, f.data(), DType::bf16, b.data(), 2), 13.0F);
  }
}

TEST(SumLoops, ColumnsDoNotDependOnTheirSplit) {
  constexpr std::int64_t rows = 21, cols = 40;
  for (const cpu::Loops* loops : all_loops()) {
    SCOPED_TRACE(name_of(*loops));
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      const Array x = normal_array(dtype, rows * cols, 1), old = normal_array(DType::f32, cols, 2);
      const auto run = [&](Array& sums, std::int64_t begin, std::int64_t end) {
        loops->column_sums(dtype, x.data(), cols, 1, rows, begin, end, sums.floats());
      };
      testing::expect_same_bits_for_any_split(old, run);
      Array sums = old;
      run(sums, 0, cols);
      for (std::int64_t j = 0; j < cols; ++j) {
        double exact = old[j];
        for (std::int64_t i = 1; i < rows; ++i) exact += x[i * cols + j];
        ASSERT_NEAR(sums[j], exact, 1e-5);
      }
    }
  }
}

}  // namespace
}  // namespace mica
