// SPDX-License-Identifier: Apache-2.0
#include "thin_product.hpp"

#include <algorithm>
#include <cstddef>

#include "loops.hpp"
#include "pair_tiles.hpp"
#include "parallel.hpp"
#include "product_rows.hpp"

namespace mica::cpu {

namespace {

/// More rows than these are faster in a library, which uses registers better.
constexpr std::int64_t kMostRows = 16;
/// Columns of C that are summed at a time: their weights stay in the second-level cache for all rows.
constexpr std::int64_t kColumns = 64;
/// Weights that are worth a thread.
constexpr std::int64_t kGrainNumel = 64 << 10;

}  // namespace

bool ThinProduct::suits(const ProductSpec& s) { return s.m <= kMostRows && !s.transposed_a && s.transposed_b && !s.accumulate; }

std::int64_t ThinProduct::scratch_bytes() const { return spec_.m * thin_length(spec_.k) * static_cast<std::int64_t>(sizeof(float)); }

void ThinProduct::run(const void* a, const void* b, const void* bias, void* c, void* scratch) const {
  const ProductSpec& s = spec_;
  const Loops& loop = loops();
  const PairTiles* const pairs = s.a == DType::bf16 && s.b == DType::bf16 ? pair_tiles() : nullptr;
  const std::int64_t padded = thin_length(s.k), ldx = pairs ? padded / 2 : padded;  // in the elements of x
  auto* const x_pairs = static_cast<Pair*>(scratch);
  auto* const x = static_cast<float*>(scratch);
  if (pairs) {
    pairs->load_rows(a, s.lda, s.m, s.k, padded, x_pairs);
  } else {
    for (std::int64_t row = 0; row < s.m; ++row) loop.thin_row(s.b, s.a, element_at(a, s.a, row * s.lda), s.k, x + row * ldx);
  }
  const std::int64_t grain = std::max<std::int64_t>(1, kGrainNumel / std::max<std::int64_t>(1, s.k * kColumns)) * kColumns;
  parallel_ranges(s.n, grain, [&](std::int64_t begin, std::int64_t end) {
    float sums[kThinRows * kColumns], addend[kColumns] = {};
    for (std::int64_t col = begin; col < end; col += kColumns) {
      const std::int64_t cols = std::min(kColumns, end - col);
      if (bias) loop.convert(element_at(bias, *s.bias, col), *s.bias, addend, DType::f32, 0, cols);
      for (std::int64_t row = 0; row < s.m; row += kThinRows) {
        const std::int64_t rows = std::min(kThinRows, s.m - row);
        const void* const weights = element_at(b, s.b, col * s.ldb);
        if (pairs) {
          pairs->thin_product(weights, s.ldb, x_pairs + row * ldx, ldx, rows, s.k, cols, sums, kColumns);
        } else {
          loop.thin_product(s.b, weights, s.ldb, x + row * ldx, ldx, rows, s.k, cols, sums, kColumns);
        }
        for (std::int64_t r = 0; r < rows; ++r) {
          float* sum = sums + r * kColumns;
          if (bias) loop.add(DType::f32, sum, addend, sum, 0, cols);
          loop.convert(sum, DType::f32, element_at(c, s.c, (row + r) * s.ldc + col), s.c, 0, cols);
        }
      }
    }
  });
}

}  // namespace mica::cpu
