// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "loops_testing.hpp"

namespace mica {
namespace {
using testing::all_loops;
using testing::Array;
using testing::name_of;
using testing::normal_array;
using testing::ulps;

constexpr std::array<std::int64_t, 10> kRowLengths{1, 2, 5, 15, 16, 17, 33, 100, 1000, 50257};

struct ExactRow {
  double max = -INFINITY, sum = 0;
};
ExactRow exact_softmax(const Array& x, std::int64_t n) {
  ExactRow r;
  for (std::int64_t i = 0; i < n; ++i) r.max = std::max(r.max, x[i]);
  for (std::int64_t i = 0; i < n; ++i) r.sum += std::exp(x[i] - r.max);
  return r;
}

TEST(CrossEntropyLoop, MaxAndSum) {
  for (const cpu::Loops* loops : all_loops()) {
    for (const std::int64_t n : kRowLengths) {
      SCOPED_TRACE(std::string(name_of(*loops)) + " n " + std::to_string(n));
      const Array x = normal_array(DType::f32, n, 1, 5);
      const ExactRow exact = exact_softmax(x, n);
      cpu::RowSoftmax row;
      (void)loops->cross_entropy_row(x.floats(), n, 0, &row);
      EXPECT_EQ(static_cast<double>(row.max), exact.max);
      EXPECT_NEAR(static_cast<double>(row.sum) / exact.sum, 1, 1e-6);
      for (std::int64_t i = 0; i < std::min<std::int64_t>(n, 40); ++i) {  // the maximum in every lane
        Array peak = x;
        peak.set(i, 100);
        (void)loops->cross_entropy_row(peak.floats(), n, 0, &row);
        ASSERT_EQ(row.max, 100.0F);
      }
    }
  }
}

TEST(CrossEntropyLoop, LossAndGradient) {
  for (const cpu::Loops* loops : all_loops()) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      for (const std::int64_t n : kRowLengths) {
        for (const std::int64_t target : {std::int64_t{0}, n / 2, n - 1}) {
          SCOPED_TRACE(std::string(name_of(*loops)) + " n " + std::to_string(n) + " target " + std::to_string(target));
          const Array x = normal_array(DType::f32, n, 1, 4);
          const ExactRow exact = exact_softmax(x, n);
          cpu::RowSoftmax row;
          const float loss = loops->cross_entropy_row(x.floats(), n, target, &row);
          EXPECT_NEAR(static_cast<double>(loss), std::log(exact.sum) + exact.max - x[target],
                      1e-6 * (1 + std::abs(exact.max) + std::log(exact.sum)));
          EXPECT_EQ(loops->cross_entropy_row(x.floats(), n, target, nullptr), loss);
          const double factor = -0.01;
          Array d(dtype, n + 1);
          loops->cross_entropy_backward_row(x.floats(), n, target, row, static_cast<float>(factor), d.data(), dtype);
          for (std::int64_t i = 0; i < n; ++i) {
            const double p = std::exp(x[i] - exact.max) / exact.sum;
            // x - max is rounded before the exponential.
            const double eps = (10 + std::abs(x[i] - exact.max)) * 0x1p-24 + (dtype == DType::f32 ? 0 : 0x1p-8);
            const double expected = factor * (p - (i == target ? 1 : 0));
            ASSERT_NEAR(d[i], expected,
                        std::abs(eps * expected) + testing::subnormal_rounding(dtype) + (i == target ? 4 * 0x1p-24 * std::abs(factor) : 0))
                << i;
          }
          EXPECT_TRUE(std::isnan(d[n])) << "wrote behind the row";
          Array in_place = x;
          loops->cross_entropy_backward_row(in_place.floats(), n, target, row, static_cast<float>(factor), in_place.data(), dtype);
          EXPECT_EQ(std::memcmp(in_place.data(), d.data(), static_cast<std::size_t>(n * dtype_bytes(dtype))), 0);
        }
      }
    }
  }
}

TEST(CrossEntropyLoop, ExtremeLogits) {
  for (const cpu::Loops* loops : all_loops()) {
    SCOPED_TRACE(name_of(*loops));
    const Array huge(DType::f32, {3e38, 0, -3e38});
    EXPECT_EQ(loops->cross_entropy_row(huge.floats(), 3, 0, nullptr), 0.0F);
    EXPECT_EQ(loops->cross_entropy_row(huge.floats(), 3, 1, nullptr), 3e38F);
    const Array bad(DType::f32, {0, std::nan(""), 1});
    EXPECT_TRUE(std::isnan(loops->cross_entropy_row(bad.floats(), 3, 0, nullptr)));
    const Array equal(DType::f32, std::vector<double>(50257, -1e4));
    EXPECT_NEAR(static_cast<double>(loops->cross_entropy_row(equal.floats(), 50257, 9, nullptr)), std::log(50257.0), 1e-5);
  }
}

}  // namespace
}  // namespace mica
