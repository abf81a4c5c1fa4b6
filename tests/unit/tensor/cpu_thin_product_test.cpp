// SPDX-License-Identifier: Apache-2.0
#include "kernels_testing.hpp"
#include "loops_testing.hpp"

// Products of few rows, which a CPU computes itself.
namespace mica::testing {
namespace {

class ThinProduct : public KernelsTest {};

/// Depths around a vector of each instruction set and twice that; columns around the block; rows around both kinds of product.
TEST_P(ThinProduct, IsTheOracles) {
  for (const std::int64_t m : {1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17}) {
    for (const auto& [n, k] : {std::pair<std::int64_t, std::int64_t>{1, 1}, {5, 31}, {64, 32}, {67, 33}, {130, 95}}) {
      for (const DType out : {DType::f32, dtype()}) {
        HostTensor x = random({m, k}, 1), w = random({n, k}, 2), bias = random({n}, 3);
        Pair y({m, n}, out), without({m, n}, out);
        both([&](Kernels& kernels, bool r) {
          kernels.linear(*stream_, x, w, bias, y.of(r));
          kernels.linear(*stream_, x, w, {}, without.of(r));
        });
        EXPECT_TRUE(y.near(sum_error(k + 1))) << m << "x" << n << "x" << k;
        EXPECT_TRUE(without.near(sum_error(k))) << m << "x" << n << "x" << k;
      }
    }
  }
}

/// So that what is generated from a prompt does not depend on the batch, nor on how many ranks share it.
TEST_P(ThinProduct, ARowsBitsAreThoseItHasAlone) {
  const std::int64_t m = 11, n = 150, k = 77;
  HostTensor x = random({m, k}, 1), w = random({n, k}, 2), together({m, n}, DType::f32);
  tested_->linear(*stream_, x, w, {}, together);
  for (std::int64_t row = 0; row < m; ++row) {
    HostTensor alone({1, n}, DType::f32);
    tested_->linear(*stream_, x.view().slice(row * k, k).reshaped({1, k}), w, {}, alone);
    stream_->synchronize();
    for (std::int64_t j = 0; j < n; ++j) ASSERT_EQ(alone.at(j), together.at(row * n + j)) << row << " " << j;
  }
}

INSTANTIATE_TEST_SUITE_P(Lanes, ThinProduct, all_lanes(), lane_name);

/// Each instruction set that this processor has, not only the one in use.
TEST(ThinProductLoops, AreRightOnEveryInstructionSet) {
  for (const cpu::Loops* loops : all_loops()) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      for (const std::int64_t k : {1, 7, 16, 31, 64, 100}) {
        constexpr std::int64_t kCols = 5;
        Array w(dtype, kCols * k), x(dtype, cpu::kThinRows * k);
        for (std::int64_t i = 0; i < w.numel(); ++i) w.set(i, static_cast<double>(i % 13) - 6);  // sums of small integers are exact
        for (std::int64_t i = 0; i < x.numel(); ++i) x.set(i, static_cast<double>(i % 7) - 3);
        const std::int64_t ldx = cpu::thin_length(k);
        std::vector<float> rows(static_cast<std::size_t>(cpu::kThinRows * ldx), NAN);
        for (std::int64_t r = 0; r < cpu::kThinRows; ++r) {
          loops->thin_row(dtype, dtype, static_cast<const std::byte*>(x.data()) + r * k * dtype_bytes(dtype), k, rows.data() + r * ldx);
        }
        for (std::int64_t num_rows = 1; num_rows <= cpu::kThinRows; ++num_rows) {
          std::vector<float> c(static_cast<std::size_t>(num_rows * kCols), NAN);
          loops->thin_product(dtype, w.data(), k, rows.data(), ldx, num_rows, k, kCols, c.data(), kCols);
          for (std::int64_t r = 0; r < num_rows; ++r) {
            for (std::int64_t j = 0; j < kCols; ++j) {
              double want = 0;
              for (std::int64_t i = 0; i < k; ++i) want += x[r * k + i] * w[j * k + i];
              ASSERT_EQ(static_cast<double>(c[static_cast<std::size_t>(r * kCols + j)]), want) << name_of(*loops) << " " << k << " " << r;
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace mica::testing
