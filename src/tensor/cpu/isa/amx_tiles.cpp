// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "../pair_tiles.hpp"
#include "vec.hpp"

// PairTiles::multiply by AMX, where the processor has it. Compiled for AVX-512 only.

#define MICA_WITH_AMX __attribute__((target("amx-tile,amx-bf16")))

namespace mica::cpu::MICA_ISA {
namespace {

/// Rows and pairs of A's tile, rows and floats of C's: a whole register of 1 KiB.
constexpr std::int64_t kTileSide = 16;

/// What ldtilecfg reads: registers 0 to 3 for C [rows, kTileSide], 4 and 5 for A [rows, pairs], 6 and 7 for B [pairs, kTileSide].
struct alignas(64) TileShapes {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {};  // the first 8 of both are used
  std::uint8_t num_rows[16] = {};
};

MICA_INLINE TileShapes shapes_of(std::int64_t rows, std::int64_t pairs) {
  TileShapes shapes;
  for (int i = 0; i < 8; ++i) {
    shapes.row_bytes[i] = static_cast<std::uint16_t>(4 * (i == 4 || i == 5 ? pairs : kTileSide));
    shapes.num_rows[i] = static_cast<std::uint8_t>(i < 6 ? rows : pairs);
  }
  return shapes;
}

/// C of R x N tiles in registers over the whole depth.
template <int R, int N>
MICA_WITH_AMX void multiply_tiles(const Pair* a, std::int64_t lda, const Pair* b, std::int64_t ldb, float* c, std::int64_t ldc,
                                  std::int64_t depth, bool accumulate) {
  const std::int64_t a_bytes = 4 * lda, b_bytes = 4 * ldb, c_bytes = 4 * ldc;
  if (accumulate) {
    _tile_loadd(0, c, c_bytes);
    if constexpr (N > 1) _tile_loadd(1, c + kTileSide, c_bytes);
    if constexpr (R > 1) _tile_loadd(2, c + kTileSide * ldc, c_bytes);
    if constexpr (R > 1 && N > 1) _tile_loadd(3, c + kTileSide * ldc + kTileSide, c_bytes);
  } else {
    _tile_zero(0);
    if constexpr (N > 1) _tile_zero(1);
    if constexpr (R > 1) _tile_zero(2);
    if constexpr (R > 1 && N > 1) _tile_zero(3);
  }
  for (; depth > 0; depth -= kTileSide, a += kTileSide, b += kTileSide * ldb) {
    _tile_loadd(6, b, b_bytes);
    _tile_loadd(4, a, a_bytes);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (N > 1) {
      _tile_loadd(7, b + kTileSide, b_bytes);
      _tile_dpbf16ps(1, 4, 7);
    }
    if constexpr (R > 1) {
      _tile_loadd(5, a + kTileSide * lda, a_bytes);
      _tile_dpbf16ps(2, 5, 6);
    }
    if constexpr (R > 1 && N > 1) _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, c, c_bytes);
  if constexpr (N > 1) _tile_stored(1, c + kTileSide, c_bytes);
  if constexpr (R > 1) _tile_stored(2, c + kTileSide * ldc, c_bytes);
  if constexpr (R > 1 && N > 1) _tile_stored(3, c + kTileSide * ldc + kTileSide, c_bytes);
}

template <int R>
void multiply_tile_rows(const Pair* a, std::int64_t lda, const Pair* b, std::int64_t ldb, float* c, std::int64_t ldc, std::int64_t cols,
                        std::int64_t depth, bool accumulate) {
  std::int64_t col = 0;
  for (; col + 2 * kTileSide <= cols; col += 2 * kTileSide) multiply_tiles<R, 2>(a, lda, b + col, ldb, c + col, ldc, depth, accumulate);
  if (col < cols) multiply_tiles<R, 1>(a, lda, b + col, ldb, c + col, ldc, depth, accumulate);
}

/// Rows and depth of whole tiles, or of one that is smaller.
MICA_WITH_AMX void multiply_alike(const Pair* a, std::int64_t lda, const Pair* b, std::int64_t ldb, float* c, std::int64_t ldc,
                                  std::int64_t rows, std::int64_t cols, std::int64_t depth, bool accumulate) {
  if (rows == 0 || depth == 0) return;
  const TileShapes shapes = shapes_of(rows < kTileSide ? rows : kTileSide, depth < kTileSide ? depth : kTileSide);
  asm volatile("" : : "r"(&shapes) : "memory");  // the intrinsics do not say what they read
  _tile_loadconfig(&shapes);
  std::int64_t row = 0;
  for (; row + 2 * kTileSide <= rows; row += 2 * kTileSide) {
    multiply_tile_rows<2>(a + row * lda, lda, b, ldb, c + row * ldc, ldc, cols, depth, accumulate);
  }
  if (row < rows) multiply_tile_rows<1>(a + row * lda, lda, b, ldb, c + row * ldc, ldc, cols, depth, accumulate);
}

/// Smaller tiles at the ends, so that a sum has the same bits wherever its row is and however many zeros follow.
MICA_WITH_AMX void multiply_by_amx(const Pair* a, std::int64_t lda, const Pair* b, std::int64_t ldb, float* c, std::int64_t ldc,
                                   std::int64_t rows, std::int64_t cols, std::int64_t depth, bool accumulate) {
  const std::int64_t whole_rows = rows / kTileSide * kTileSide, whole_depth = depth / kTileSide * kTileSide;
  const auto part = [&](std::int64_t row, std::int64_t num_rows, std::int64_t first, std::int64_t num_pairs) MICA_INLINE_LAMBDA {
    multiply_alike(a + row * lda + first, lda, b + first * ldb, ldb, c + row * ldc, ldc, num_rows, cols, num_pairs,
                   accumulate || first > 0);
  };
  part(0, whole_rows, 0, whole_depth);
  part(0, whole_rows, whole_depth, depth - whole_depth);
  part(whole_rows, rows - whole_rows, 0, whole_depth);
  part(whole_rows, rows - whole_rows, whole_depth, depth - whole_depth);
  _tile_release();  // a context switch need not save the registers
}

}  // namespace

void install_amx_tiles(PairTiles& tiles) { tiles.multiply = multiply_by_amx; }

}  // namespace mica::cpu::MICA_ISA
