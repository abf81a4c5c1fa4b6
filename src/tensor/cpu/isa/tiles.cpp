#include "../tiles.hpp"

#include "elements.hpp"

// The small products of attention, see Tiles. Rows of C are held in registers: kRows x kVectors accumulators.
namespace mica::cpu::MICA_ISA {
namespace {

// As many accumulators as hide the latency of a multiply-add and still leave registers for the operands.
constexpr int kRows = kLanes == 16 ? 8 : kLanes == 8 ? 6 : 4;
constexpr int kVectors = 2;

using Quad = float __attribute__((vector_size(16)));
using QuadIndex = std::int32_t __attribute__((vector_size(16)));

/// C[R, N vectors] in registers over the whole depth.
template <int R, int N>
void multiply_block(Tiles::Left a, const float* b, std::int64_t ldb, float* c, std::int64_t ldc, std::int64_t depth,
                    bool accumulate) {
  F32 sum[R][N];
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < N; ++v) sum[r][v] = accumulate ? load(c + r * ldc + v * kLanes) : F32{};
  }
  const float* left = a.data;
  for (std::int64_t k = 0; k < depth; ++k, left += a.col_stride, b += ldb) {
    F32 right[N];
    for (int v = 0; v < N; ++v) right[v] = load(b + v * kLanes);
    for (int r = 0; r < R; ++r) {
      const F32 x = splat(left[r * a.row_stride]);
      for (int v = 0; v < N; ++v) sum[r][v] = fma(x, right[v], sum[r][v]);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < N; ++v) store(c + r * ldc + v * kLanes, sum[r][v]);
  }
}

/// The last rows of a tile, fewer than kRows.
template <int R, int N>
void multiply_rest(Tiles::Left a, const float* b, std::int64_t ldb, float* c, std::int64_t ldc, std::int64_t rows,
                   std::int64_t depth, bool accumulate) {
  if constexpr (R > 0) {
    if (rows == R) return multiply_block<R, N>(a, b, ldb, c, ldc, depth, accumulate);
    multiply_rest<R - 1, N>(a, b, ldb, c, ldc, rows, depth, accumulate);
  }
}

template <int N>
void multiply_columns(Tiles::Left a, const float* b, std::int64_t ldb, float* c, std::int64_t ldc, std::int64_t rows,
                      std::int64_t depth, bool accumulate) {
  std::int64_t row = 0;
  for (; row + kRows <= rows; row += kRows) {
    multiply_block<kRows, N>({a.data + row * a.row_stride, a.row_stride, a.col_stride}, b, ldb, c + row * ldc, ldc,
                             depth, accumulate);
  }
  multiply_rest<kRows - 1, N>({a.data + row * a.row_stride, a.row_stride, a.col_stride}, b, ldb, c + row * ldc, ldc,
                              rows - row, depth, accumulate);
}

void multiply(Tiles::Left a, const float* b, std::int64_t ldb, float* c, std::int64_t ldc, std::int64_t rows,
              std::int64_t cols, std::int64_t depth, bool accumulate) {
  std::int64_t col = 0;
  for (; col + kVectors * kLanes <= cols; col += kVectors * kLanes) {
    multiply_columns<kVectors>(a, b + col, ldb, c + col, ldc, rows, depth, accumulate);
  }
  for (; col < cols; col += kLanes) multiply_columns<1>(a, b + col, ldb, c + col, ldc, rows, depth, accumulate);
}

MICA_INLINE Quad load_quad(const float* p) {
  Quad v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
MICA_INLINE void store_quad(float* p, Quad v) { __builtin_memcpy(p, &v, sizeof v); }

void transpose_4x4(const float* x, std::int64_t ld, float* y, std::int64_t ldy) {
  const Quad a = load_quad(x), b = load_quad(x + ld), c = load_quad(x + 2 * ld), d = load_quad(x + 3 * ld);
  const Quad ab_low = __builtin_shuffle(a, b, QuadIndex{0, 4, 1, 5}), ab_high = __builtin_shuffle(a, b, QuadIndex{2, 6, 3, 7});
  const Quad cd_low = __builtin_shuffle(c, d, QuadIndex{0, 4, 1, 5}), cd_high = __builtin_shuffle(c, d, QuadIndex{2, 6, 3, 7});
  store_quad(y, __builtin_shuffle(ab_low, cd_low, QuadIndex{0, 1, 4, 5}));
  store_quad(y + ldy, __builtin_shuffle(ab_low, cd_low, QuadIndex{2, 3, 6, 7}));
  store_quad(y + 2 * ldy, __builtin_shuffle(ab_high, cd_high, QuadIndex{0, 1, 4, 5}));
  store_quad(y + 3 * ldy, __builtin_shuffle(ab_high, cd_high, QuadIndex{2, 3, 6, 7}));
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
