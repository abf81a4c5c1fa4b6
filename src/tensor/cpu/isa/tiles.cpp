// SPDX-License-Identifier: Apache-2.0
#include "../tiles.hpp"

#include "elements.hpp"

// The small products of attention, see Tiles. Rows of C are held in registers: kRows x kVectors accumulators.
namespace mica::cpu::MICA_ISA {
namespace {

// Enough accumulators to hide the latency of a multiply-add, few enough to leave registers for the operands.
constexpr int kRows = kLanes == 16 ? 8 : kLanes == 8 ? 6 : 4;
constexpr int kVectors = 2;

using Quad = float __attribute__((vector_size(16)));

/// One load instruction, where splat() would add: x - 0 is x for every x.
MICA_INLINE F32 broadcast(const float* x) { return *x - F32{}; }

/// C[R, N vectors] in registers over the whole depth. Loops must be unrolled: otherwise compilers keep the accumulators in memory.
template <int R, int N, bool kAccumulate>
void multiply_block(Tiles::Left a, const float* b, std::int64_t ldb, float* c, std::int64_t ldc, std::int64_t depth) {
  F32 sum[R][N];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < N; ++v) {
      if constexpr (kAccumulate) {
        sum[r][v] = load(c + r * ldc + v * kLanes);
      } else {
        sum[r][v] = F32{};
      }
    }
  }
  const float* left = a.data;
#pragma GCC unroll 1
  for (std::int64_t k = 0; k < depth; ++k, left += a.col_stride, b += ldb) {
    F32 right[N];
#pragma GCC unroll 4
    for (int v = 0; v < N; ++v) right[v] = load(b + v * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const F32 x = broadcast(left + r * a.row_stride);
#pragma GCC unroll 4
      for (int v = 0; v < N; ++v) sum[r][v] = fma(x, right[v], sum[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < N; ++v) store(c + r * ldc + v * kLanes, sum[r][v]);
  }
}

/// The last rows of a tile, fewer than kRows.
template <int R, int N, bool kAccumulate>
void multiply_rest(Tiles::Left a, const float* b, std::int64_t ldb, float* c, std::int64_t ldc, std::int64_t rows, std::int64_t depth) {
  if constexpr (R > 0) {
    if (rows == R) return multiply_block<R, N, kAccumulate>(a, b, ldb, c, ldc, depth);
    multiply_rest<R - 1, N, kAccumulate>(a, b, ldb, c, ldc, rows, depth);
  }
}

template <int N, bool kAccumulate>
void multiply_columns(Tiles::Left a, const float* b, std::int64_t ldb, float* c, std::int64_t ldc, std::int64_t rows, std::int64_t depth) {
  for (; rows >= kRows; rows -= kRows, a.data += kRows * a.row_stride, c += kRows * ldc) {
    multiply_block<kRows, N, kAccumulate>(a, b, ldb, c, ldc, depth);
  }
  multiply_rest<kRows - 1, N, kAccumulate>(a, b, ldb, c, ldc, rows, depth);
}

template <bool kAccumulate>
void multiply_all(Tiles::Left a, const float* b, std::int64_t ldb, float* c, std::int64_t ldc, std::int64_t rows, std::int64_t cols,
                  std::int64_t depth) {
  std::int64_t col = 0;
  for (; col + kVectors * kLanes <= cols; col += kVectors * kLanes) {
    multiply_columns<kVectors, kAccumulate>(a, b + col, ldb, c + col, ldc, rows, depth);
  }
  for (; col < cols; col += kLanes) multiply_columns<1, kAccumulate>(a, b + col, ldb, c + col, ldc, rows, depth);
}

void multiply(Tiles::Left a, const float* b, std::int64_t ldb, float* c, std::int64_t ldc, std::int64_t rows, std::int64_t cols,
              std::int64_t depth, bool accumulate) {
  if (accumulate) {
    multiply_all<true>(a, b, ldb, c, ldc, rows, cols, depth);
  } else {
    multiply_all<false>(a, b, ldb, c, ldc, rows, cols, depth);
  }
}

MICA_INLINE Quad load_quad(const float* p) {
  Quad v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
MICA_INLINE void store_quad(float* p, Quad v) { __builtin_memcpy(p, &v, sizeof v); }

void transpose_4x4(const float* x, std::int64_t ld, float* y, std::int64_t ldy) {
  const Quad a = load_quad(x), b = load_quad(x + ld), c = load_quad(x + 2 * ld), d = load_quad(x + 3 * ld);
  const Quad ab_low = shuffle<0, 4, 1, 5>(a, b), ab_high = shuffle<2, 6, 3, 7>(a, b);
  const Quad cd_low = shuffle<0, 4, 1, 5>(c, d), cd_high = shuffle<2, 6, 3, 7>(c, d);
  store_quad(y, shuffle<0, 1, 4, 5>(ab_low, cd_low));
  store_quad(y + ldy, shuffle<2, 3, 6, 7>(ab_low, cd_low));
  store_quad(y + 2 * ldy, shuffle<0, 1, 4, 5>(ab_high, cd_high));
  store_quad(y + 3 * ldy, shuffle<2, 3, 6, 7>(ab_high, cd_high));
}

void transpose_to_panel(const float* x, std::int64_t ld, std::int64_t rows, std::int64_t cols, float* panel) {
  const std::int64_t whole_rows = rows / 4 * 4;
  const std::int64_t whole_cols = cols / 4 * 4;
  for (std::int64_t row = 0; row < whole_rows; row += 4) {
    for (std::int64_t col = 0; col < whole_cols; col += 4) transpose_4x4(x + row * ld + col, ld, panel + col * kPanel + row, kPanel);
    for (std::int64_t col = whole_cols; col < cols; ++col) {
      for (std::int64_t r = row; r < row + 4; ++r) panel[col * kPanel + r] = x[r * ld + col];
    }
  }
  for (std::int64_t col = 0; col < cols; ++col) {
    for (std::int64_t row = whole_rows; row < rows; ++row) panel[col * kPanel + row] = x[row * ld + col];
    for (std::int64_t row = rows; row < kPanel; ++row) panel[col * kPanel + row] = 0;
  }
}

}  // namespace

void install_tiles(Tiles& tiles) {
  tiles.multiply = multiply;
  tiles.transpose_to_panel = transpose_to_panel;
}

}  // namespace mica::cpu::MICA_ISA
