// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace mica::cpu {

/// Two bf16 numbers that are neighbours along a product's depth; the first in the lower half. [Note: pairs of bf16]
/// Processors with AVX512-BF16 multiply two pairs and add both products to an f32 in one instruction: twice the rate of f32. The left
/// operand's rows are pairs as they lie in memory; the right operand has rows 2k and 2k+1 interleaved. bf16 is converted with its
/// rounding to nearest even; the instruction takes subnormal numbers as zero. AMX multiplies 16 rows of 16 pairs by 16 x 16 of them at
/// once, from the same arrangement in memory.
using Pair = std::uint32_t;

/// What attention in bf16 needs, as Tiles is for f32, and products of few rows. Single-threaded.
struct PairTiles {
  /// As Loops::thin_product() for weights in bf16. x: rows of load_rows(), ldx pairs apart, padded to thin_length(k) numbers.
  void (*thin_product)(const void* w, std::int64_t ldw, const Pair* x, std::int64_t ldx, std::int64_t rows, std::int64_t k,
                       std::int64_t cols, float* c, std::int64_t ldc);
  /// C[rows, cols] (+)= A[rows, 2 * depth] B[2 * depth, cols]: a is [rows][lda] pairs, b [depth][ldb]; depth at least 1, cols a multiple of
  /// kTilePad.
  void (*multiply)(const Pair* a, std::int64_t lda, const Pair* b, std::int64_t ldb, float* c, std::int64_t ldc, std::int64_t rows,
                   std::int64_t cols, std::int64_t depth, bool accumulate);
  /// Rows of `dim` bf16, `stride` elements apart -> dense rows of padded_dim (even), the padding zero.
  void (*load_rows)(const void* x, std::int64_t stride, std::int64_t rows, std::int64_t dim, std::int64_t padded_dim, Pair* dst);
  /// Rows of `cols` bf16 (a multiple of kTilePad), ld pairs apart -> [ceil(rows / 2)][cols] pairs of rows 2k and 2k+1, zeros beside an odd
  /// last row.
  void (*interleave_rows)(const Pair* x, std::int64_t ld, std::int64_t rows, std::int64_t cols, Pair* dst, std::int64_t ldd);
  /// Of bf16: to[c * ldt + r] = x[r * ldx + c] for r < rows and c < cols.
  void (*transpose)(const void* x, std::int64_t ldx, std::int64_t rows, std::int64_t cols, void* to, std::int64_t ldt);
  /// As Tiles::softmax_rows, with the results in bf16 in p (p_stride pairs a row).
  void (*softmax_rows)(const float* scores, std::int64_t stride, std::int64_t rows, std::int64_t visible, std::int64_t cols, float factor,
                       Pair* p, std::int64_t p_stride, float* shifts, float* sums);
  /// Transposed scores and dP, a row for each key and a column for each query, -> P = exp(factor * score - lse[query]) and
  /// dS = factor * P * (dP - delta[query]) in bf16 (pair_stride pairs a row). Row r keeps queries [first + r, queries); the others up to
  /// `cols` (a multiple of kTilePad) become zero. What lies in whole vectors before a row's first query is not read.
  void (*softmax_backward_columns)(const float* scores, const float* dscores, std::int64_t stride, std::int64_t rows, std::int64_t first,
                                   std::int64_t queries, std::int64_t cols, float factor, const float* lse, const float* delta, Pair* p,
                                   Pair* ds, std::int64_t pair_stride);
};

/// Null: this processor has no such instructions, or MICA_CPU_ISA leaves AVX-512 out.
[[nodiscard]] const PairTiles* pair_tiles();

}  // namespace mica::cpu
