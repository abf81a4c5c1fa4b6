// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "mica/core/dtype.hpp"

namespace mica::cpu {

enum class Isa : std::uint8_t;  // loops.hpp

/// Columns of C and B that tiles work on are padded to a multiple of this many floats.
inline constexpr std::int64_t kTilePad = 16;
/// Keys of one panel of attention, and queries of one tile.
inline constexpr std::int64_t kPanel = 64;

/// Small f32 products for attention, where the operands are in cache and a library's per-call cost would matter, and the row
/// operations between them. Single-threaded, any alignment. One set per instruction set, as for Loops.
struct Tiles {
  /// One operand: element (row, col) is data[row * row_stride + col * col_stride].
  struct Left {
    const float* data;
    std::int64_t row_stride, col_stride;
  };
  /// C[rows, cols] (+)= A[rows, depth] B[depth, cols]; cols a multiple of kTilePad.
  void (*multiply)(Left a, const float* b, std::int64_t ldb, float* c, std::int64_t ldc, std::int64_t rows, std::int64_t cols,
                   std::int64_t depth, bool accumulate);
  /// panel[cols][kPanel] = transpose of x[rows, cols] (stride ld), rows <= kPanel; the columns past `rows` become zero.
  void (*transpose_to_panel)(const float* x, std::int64_t ld, std::int64_t rows, std::int64_t cols, float* panel);

  /// rows of `dim` elements (f32, bf16 or f16), `stride` elements apart -> dense f32 rows of padded_dim, the padding zero.
  void (*load_rows)(const void* x, DType dtype, std::int64_t stride, std::int64_t rows, std::int64_t dim, std::int64_t padded_dim,
                    float* dst);
  /// The reverse of load_rows; row r is multiplied by factors[r] (null: by 1).
  void (*store_rows)(const float* x, std::int64_t padded_dim, const float* factors, std::int64_t rows, std::int64_t dim, void* dst,
                     DType dtype, std::int64_t stride);
  /// The first visible + r scores of row r become exp(factor * score - shift) with shift = factor * their maximum, the
  /// others up to `cols` (a multiple of kTilePad) zero. sums[r] is the sum, so log-sum-exp = shifts[r] + log(sums[r]).
  void (*softmax_rows)(float* scores, std::int64_t stride, std::int64_t rows, std::int64_t visible, std::int64_t cols, float factor,
                       float* shifts, float* sums);
  /// scores -> P = exp(factor * score - lse[r]); dscores (dP) -> factor * P * (dP - delta[r]), for the first visible + r
  /// (diagonal) or visible scores of row r; the others up to `cols` become zero.
  void (*softmax_backward_rows)(float* scores, float* dscores, std::int64_t stride, std::int64_t rows, std::int64_t visible,
                                bool is_diagonal, std::int64_t cols, float factor, const float* lse, const float* delta);
};

/// For the same instruction set as loops().
[[nodiscard]] const Tiles& tiles();
/// For one instruction set, which this processor must be able to run (tests).
[[nodiscard]] Tiles tiles_of(Isa isa);

}  // namespace mica::cpu
