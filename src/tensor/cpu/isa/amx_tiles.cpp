// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "../pair_tiles.hpp"
#include "vec.hpp"

// PairTiles::multiply by AMX, where the processor has it. Compiled for AVX-512 only.

#define MICA_WITH_AMX __attribute__((target("amx-tile,amx-bf16")))

namespace mica::cpu::MICA_ISA {
namespace {

/// Rows and pairs of an operand's tile, rows and floats of C's: a whole register of 1 KiB.
constexpr std::int64_t kTileSide = 16;

/// What ldtilecfg reads: all eight registers whole.
struct alignas(64) TileRegisters {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
constexpr TileRegisters kWholeTiles;

decltype(PairTiles::multiply) avx512_multiply;  // by AVX512-BF16: what does not fill a register

/// C[R * kTileSide, N * kTileSide] in registers over a depth of whole tiles: C in registers 0 to 3, A in 4 and 5, B in 6 and 7.
template <int R, int N>
MICA_WITH_AMX void amx_block(const Pair* a, std::int64_t lda, const Pair* b, std::int64_t ldb, float* c, std::int64_t ldc,
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
void amx_rows(const Pair* a, std::int64_t lda, const Pair* b, std::int64_t ldb, float* c, std::int64_t ldc, std::int64_t cols,
              std::int64_t depth, bool accumulate) {
  std::int64_t col = 0;
  for (; col + 2 * kTileSide <= cols; col += 2 * kTileSide) amx_block<R, 2>(a, lda, b + col, ldb, c + col, ldc, depth, accumulate);
  if (col < cols) amx_block<R, 1>(a, lda, b + col, ldb, c + col, ldc, depth, accumulate);
}

MICA_WITH_AMX void amx_multiply(const Pair* a, std::int64_t lda, const Pair* b, std::int64_t ldb, float* c, std::int64_t ldc,
                                std::int64_t rows, std::int64_t cols, std::int64_t depth, bool accumulate) {
  const std::int64_t whole_rows = rows / kTileSide * kTileSide, whole_depth = depth / kTileSide * kTileSide;
  if (whole_depth > 0 && whole_rows > 0) {
    asm volatile("" ::: "memory");  // the intrinsics do not say that they read memory
    _tile_loadconfig(&kWholeTiles);
    std::int64_t row = 0;
    for (; row + 2 * kTileSide <= rows; row += 2 * kTileSide) {
      amx_rows<2>(a + row * lda, lda, b, ldb, c + row * ldc, ldc, cols, whole_depth, accumulate);
    }
    if (row < whole_rows) amx_rows<1>(a + row * lda, lda, b, ldb, c + row * ldc, ldc, cols, whole_depth, accumulate);
    _tile_release();  // a context switch need not save the registers, and oneDNN finds them as it expects
    if (whole_depth < depth) {
      avx512_multiply(a + whole_depth, lda, b + whole_depth * ldb, ldb, c, ldc, whole_rows, cols, depth - whole_depth, true);
    }
  } else if (whole_rows > 0) {
    avx512_multiply(a, lda, b, ldb, c, ldc, whole_rows, cols, depth, accumulate);
  }
  if (whole_rows < rows) {
    avx512_multiply(a + whole_rows * lda, lda, b, ldb, c + whole_rows * ldc, ldc, rows - whole_rows, cols, depth, accumulate);
  }
}

}  // namespace

void install_amx_tiles(PairTiles& tiles) {
  avx512_multiply = tiles.multiply;
  tiles.multiply = amx_multiply;
}

}  // namespace mica::cpu::MICA_ISA
