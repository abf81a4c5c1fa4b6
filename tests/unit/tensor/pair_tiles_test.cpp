// SPDX-License-Identifier: Apache-2.0
#include "../../../src/tensor/cpu/pair_tiles.hpp"

#include "mica/core/half.hpp"

#include "../../../src/tensor/cpu/loops.hpp"
#include "kernels_testing.hpp"

namespace mica::testing {
namespace {

/// Whole 64ths below 1: exact in bf16, as are their sums of products in f32.
float sixty_fourths(std::int64_t i) { return static_cast<float>((i * 37 + 11) % 101 - 50) / 64; }

/// Pair i is of sixty_fourths(seed + 2 i) and of the one after it.
std::vector<cpu::Pair> pairs_of(std::int64_t count, std::int64_t seed) {
  std::vector<cpu::Pair> pairs;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto half = [&](std::int64_t j) { return static_cast<cpu::Pair>(bf16(sixty_fourths(seed + 2 * i + j)).bits); };
    pairs.push_back(half(0) | half(1) << 16);
  }
  return pairs;
}

TEST(PairTiles, MultiplyEveryNumberOfRowsColumnsAndDepths) {
  const cpu::PairTiles* const tiles = cpu::pair_tiles();
  if (tiles == nullptr) {
#if defined(__x86_64__)
    EXPECT_FALSE(cpu::loops().isa == cpu::Isa::v4 && __builtin_cpu_supports("avx512bf16"));
#endif
    return;
  }
  for (std::int64_t rows = 1; rows <= 65; rows += rows < 18 || rows > 46 ? 1 : 7) {
    for (const std::int64_t cols : {16, 32, 48, 80}) {
      for (const std::int64_t depth : {1, 8, 15, 16, 17, 32, 40}) {
        for (const bool accumulate : {false, true}) {
          const std::int64_t lda = depth + 3, ldb = cols + 1, ldc = cols + 5;
          const std::vector<cpu::Pair> a = pairs_of(rows * lda, 1), b = pairs_of(depth * ldb, 2);
          std::vector<float> c(static_cast<std::size_t>((rows + 15) * ldc), 0.5F);
          tiles->multiply(a.data(), lda, b.data(), ldb, c.data(), ldc, rows, cols, depth, accumulate);
          for (std::int64_t i = 0; i < std::ssize(c); ++i) {
            const std::int64_t row = i / ldc, col = i % ldc;
            float want = 0.5F;
            if (row < rows && col < cols) {
              want = accumulate ? 0.5F : 0;
              for (std::int64_t k = 0; k < 2 * depth; ++k) {
                want += sixty_fourths(1 + 2 * row * lda + k) * sixty_fourths(2 + 2 * (k / 2 * ldb + col) + k % 2);
              }
            }
            ASSERT_EQ(c[static_cast<std::size_t>(i)], want) << rows << "x" << cols << "x" << depth << " at " << row << "," << col;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace mica::testing
