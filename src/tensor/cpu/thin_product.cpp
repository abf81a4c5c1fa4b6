// SPDX-License-Identifier: Apache-2.0
#include "thin_product.hpp"

#include <algorithm>
#include <cstddef>

#include "loops.hpp"
#include "pair_tiles.hpp"
#include "parallel.hpp"

namespace mica::cpu {

namespace {

/// More rows than these are faster in a library, which uses registers better.
constexpr std::int64_t kMostRows = 16;
/// Columns of C that are summed at a time: their weights stay in the second-level cache for all rows.
constexpr std::int64_t kColumns = 64;
/// Weights that are worth a thread.
constexpr std::int64_t kGrainNumel = 64 << 10;

const std::byte* element(const void* data, DType dtype, std::int64_t index) {
  return static_cast<const std::byte*>(data) + index * dtype_bytes(dtype);
}

}  // namespace

bool ThinProduct::suits(const ProductSpec& s) { return s.m <= kMostRows && !s.transposed_a && s.transposed_b && !s.accumulate; }

std::int64_t ThinProduct::scratch_bytes() const { return spec_.m * thin_length(spec_.k) * static_cast<std::int64_t>(sizeof(float)); }

void ThinProduct::run(const void* a, const void* b, const void* bias, void* c, void* scratch) const {
  const ProductSpec& s = spec_;
  const Loops& loop = loops();
  const PairTiles* const pairs = s.a == DType::bf16 && s.b == DType::bf16 ? pair_tiles() : nullptr;
  const std::int64_t padded = thin_length(s.k), ldx = pairs ? padded / 2 : padded;  // of pairs, or of f32
  const auto row_of_x = [=](std::int64_t row) -> void* { return static_cast<std::byte*>(scratch) + row * ldx * 4; };
  if (pairs) pairs->load_rows(a, s.lda, s.m, s.k, padded, static_cast<Pair*>(scratch));
  for (std::int64_t row = 0; row < s.m && !pairs; ++row) {
    loop.thin_row(s.b, s.a, element(a, s.a, row * s.lda), s.k, static_cast<float*>(row_of_x(row)));
  }
  const std::int64_t grain = std::max<std::int64_t>(1, kGrainNumel / std::max<std::int64_t>(1, s.k * kColumns)) * kColumns;
  parallel_ranges(s.n, grain, [&](std::int64_t begin, std::int64_t end) {
    float sums[kThinRows * kColumns], addend[kColumns] = {};
    for (std::int64_t col = begin; col < end; col += kColumns) {
      const std::int64_t cols = std::min(kColumns, end - col);
      if (bias) loop.convert(element(bias, *s.bias, col), *s.bias, addend, DType::f32, 0, cols);
      for (std::int64_t row = 0; row < s.m; row += kThinRows) {
        const std::int64_t rows = std::min(kThinRows, s.m - row);
        const void* const weights = element(b, s.b, col * s.ldb);
        if (pairs) {
          pairs->thin_product(weights, s.ldb, static_cast<Pair*>(row_of_x(row)), ldx, rows, s.k, cols, sums, kColumns);
        } else {
          loop.thin_product(s.b, weights, s.ldb, static_cast<float*>(row_of_x(row)), ldx, rows, s.k, cols, sums, kColumns);
        }
        for (std::int64_t r = 0; r < rows; ++r) {
          float* sum = sums + r * kColumns;
          if (bias) loop.add(DType::f32, sum, addend, sum, 0, cols);
          auto* to = static_cast<std::byte*>(c) + ((row + r) * s.ldc + col) * dtype_bytes(s.c);
          loop.convert(sum, DType::f32, to, s.c, 0, cols);
        }
      }
    }
  });
}

}  // namespace mica::cpu
