// SPDX-License-Identifier: Apache-2.0
#include "../../../src/tensor/cpu/tiles.hpp"

#include "../../../src/tensor/cpu/loops.hpp"
#include "kernels_testing.hpp"

namespace mica::testing {
namespace {

using cpu::Isa;
using cpu::Tiles;

/// On every instruction set that this processor has.
void on_each_isa(const std::function<void(const Tiles&)>& check) {
  int num_checked = 0;
  for (const Isa isa : {Isa::v2, Isa::v3, Isa::v4}) {
    if (cpu::loops_of(isa) == nullptr) continue;
    SCOPED_TRACE(cpu::isa_name(isa));
    check(cpu::tiles_of(isa));
    ++num_checked;
  }
  EXPECT_GE(num_checked, 1);
}

float pattern(std::int64_t i) { return static_cast<float>((i * 37 + 11) % 101) / 50.0F - 1.0F; }

TEST(Tiles, MultiplyEveryNumberOfRowsColumnsAndDepths) {
  on_each_isa([](const Tiles& tiles) {
    for (std::int64_t rows = 0; rows <= 19; ++rows) {
      for (const std::int64_t cols : {16, 32, 48, 64, 80}) {
        for (const std::int64_t depth : {0, 1, 3, 17}) {
          for (const bool transposed : {false, true}) {
            for (const bool accumulate : {false, true}) {
              const std::int64_t lda = 29, ldb = cols + 3, ldc = cols + 5;
              std::vector<float> a(30 * 30), b(static_cast<std::size_t>(depth * ldb + 1)),
                  c(static_cast<std::size_t>(rows * ldc + 7), 0.5F);
              for (std::size_t i = 0; i < a.size(); ++i) a[i] = pattern(static_cast<std::int64_t>(i));
              for (std::size_t i = 0; i < b.size(); ++i) b[i] = pattern(static_cast<std::int64_t>(i) + 5);
              const Tiles::Left left = transposed ? Tiles::Left{a.data(), 1, lda} : Tiles::Left{a.data(), lda, 1};
              tiles.multiply(left, b.data(), ldb, c.data(), ldc, rows, cols, depth, accumulate);
              for (std::int64_t row = 0; row < rows; ++row) {
                for (std::int64_t col = 0; col < ldc; ++col) {
                  double want = 0.5;
                  if (col < cols) {
                    want = accumulate ? 0.5 : 0;
                    for (std::int64_t k = 0; k < depth; ++k) {
                      const auto x = static_cast<std::size_t>(row * left.row_stride + k * left.col_stride);
                      want += static_cast<double>(a[x]) * static_cast<double>(b[static_cast<std::size_t>(k * ldb + col)]);
                    }
                  }
                  ASSERT_NEAR(c[static_cast<std::size_t>(row * ldc + col)], want, sum_error(depth + 1))
                      << rows << "x" << cols << "x" << depth << " at " << row << "," << col;
                }
              }
            }
          }
        }
      }
    }
  });
}

TEST(Tiles, TransposeFillsAPanelAndZerosTheRest) {
  on_each_isa([](const Tiles& tiles) {
    for (const std::int64_t rows : {1, 3, 4, 17, 63, 64}) {
      for (const std::int64_t cols : {1, 3, 4, 7, 16, 33}) {
        const std::int64_t ld = cols + 2;
        std::vector<float> x(static_cast<std::size_t>(rows * ld));
        for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i + 1);
        std::vector<float> panel(static_cast<std::size_t>(cols * cpu::kPanel + 4), -1.0F);
        tiles.transpose_to_panel(x.data(), ld, rows, cols, panel.data());
        for (std::int64_t col = 0; col < cols; ++col) {
          for (std::int64_t row = 0; row < cpu::kPanel; ++row) {
            const float want = row < rows ? x[static_cast<std::size_t>(row * ld + col)] : 0.0F;
            ASSERT_EQ(panel[static_cast<std::size_t>(col * cpu::kPanel + row)], want) << rows << "x" << cols;
          }
        }
        for (std::size_t i = 0; i < 4; ++i) ASSERT_EQ(panel[static_cast<std::size_t>(cols * cpu::kPanel) + i], -1.0F);
      }
    }
  });
}

}  // namespace
}  // namespace mica::testing
