// SPDX-License-Identifier: Apache-2.0
#include "../pair_tiles.hpp"

#include "../loops.hpp"
#include "softmax_rows.hpp"

// Small products in bf16, see PairTiles. Compiled for AVX-512 only.

#define MICA_WITH_BF16 __attribute__((target("avx512bf16")))

namespace mica::cpu::MICA_ISA {
namespace {

constexpr int kPairRows = 8, kPairVectors = 2;

MICA_INLINE __m512bh load_pairs(const Pair* p) { return reinterpret_cast<__m512bh>(_mm512_loadu_si512(p)); }

/// C[R, N vectors] in registers over the whole depth, as in tiles.cpp.
template <int R, int N, bool kAccumulate>
MICA_WITH_BF16 void multiply_block(const Pair* a, std::int64_t lda, const Pair* b, std::int64_t ldb, float* c, std::int64_t ldc,
                                   std::int64_t depth) {
  __m512 sum[R][N];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < N; ++v) {
      if constexpr (kAccumulate) {
        sum[r][v] = _mm512_loadu_ps(c + r * ldc + v * kLanes);
      } else {
        sum[r][v] = _mm512_setzero_ps();
      }
    }
  }
#pragma GCC unroll 1
  for (std::int64_t k = 0; k < depth; ++k, ++a, b += ldb) {
    __m512bh right[N];
#pragma GCC unroll 4
    for (int v = 0; v < N; ++v) right[v] = load_pairs(b + v * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const auto left = reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(a[r * lda])));
#pragma GCC unroll 4
      for (int v = 0; v < N; ++v) sum[r][v] = _mm512_dpbf16_ps(sum[r][v], left, right[v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < N; ++v) _mm512_storeu_ps(c + r * ldc + v * kLanes, sum[r][v]);
  }
}

/// The last rows of a tile, fewer than kPairRows.
template <int R, int N, bool kAccumulate>
void multiply_rest(const Pair* a, std::int64_t lda, const Pair* b, std::int64_t ldb, float* c, std::int64_t ldc, std::int64_t rows,
                   std::int64_t depth) {
  if constexpr (R > 0) {
    if (rows == R) return multiply_block<R, N, kAccumulate>(a, lda, b, ldb, c, ldc, depth);
    multiply_rest<R - 1, N, kAccumulate>(a, lda, b, ldb, c, ldc, rows, depth);
  }
}

template <int N, bool kAccumulate>
void multiply_columns(const Pair* a, std::int64_t lda, const Pair* b, std::int64_t ldb, float* c, std::int64_t ldc, std::int64_t rows,
                      std::int64_t depth) {
  for (; rows >= kPairRows; rows -= kPairRows, a += kPairRows * lda, c += kPairRows * ldc) {
    multiply_block<kPairRows, N, kAccumulate>(a, lda, b, ldb, c, ldc, depth);
  }
  multiply_rest<kPairRows - 1, N, kAccumulate>(a, lda, b, ldb, c, ldc, rows, depth);
}

template <bool kAccumulate>
void multiply_all(const Pair* a, std::int64_t lda, const Pair* b, std::int64_t ldb, float* c, std::int64_t ldc, std::int64_t rows,
                  std::int64_t cols, std::int64_t depth) {
  std::int64_t col = 0;
  for (; col + kPairVectors * kLanes <= cols; col += kPairVectors * kLanes) {
    multiply_columns<kPairVectors, kAccumulate>(a, lda, b + col, ldb, c + col, ldc, rows, depth);
  }
  for (; col < cols; col += kLanes) multiply_columns<1, kAccumulate>(a, lda, b + col, ldb, c + col, ldc, rows, depth);
}

void multiply(const Pair* a, std::int64_t lda, const Pair* b, std::int64_t ldb, float* c, std::int64_t ldc, std::int64_t rows,
              std::int64_t cols, std::int64_t depth, bool accumulate) {
  if (accumulate) {
    multiply_all<true>(a, lda, b, ldb, c, ldc, rows, cols, depth);
  } else {
    multiply_all<false>(a, lda, b, ldb, c, ldc, rows, cols, depth);
  }
}

MICA_INLINE const std::uint16_t* words_of(const Pair* pairs) { return reinterpret_cast<const std::uint16_t*>(pairs); }
MICA_INLINE Bf16* numbers_of(Pair* pairs) { return reinterpret_cast<Bf16*>(pairs); }

void load_rows(const void* x, std::int64_t stride, std::int64_t rows, std::int64_t dim, std::int64_t padded_dim, Pair* dst) {
  const auto* from = static_cast<const std::uint16_t*>(x);
  auto* to = reinterpret_cast<std::uint16_t*>(dst);
  for (std::int64_t row = 0; row < rows; ++row, from += stride, to += padded_dim) {
    for (std::int64_t i = 0; i < padded_dim; i += kLanes) {
      const std::int64_t n = dim - i;
      const U16 words = n >= kLanes ? load_words(from + i) : load_first(from + i, n > 0 ? n : 0);
      __builtin_memcpy(to + i, &words, sizeof words);
    }
  }
}

void interleave_rows(const Pair* x, std::int64_t ld, std::int64_t rows, std::int64_t cols, Pair* dst, std::int64_t ldd) {
  for (std::int64_t row = 0; row < rows; row += 2, dst += ldd) {
    const std::uint16_t *first = words_of(x + row * ld), *second = words_of(x + (row + 1) * ld);
    for (std::int64_t i = 0; i < cols; i += kLanes) {
      const U32 low = widen(load_words(first + i));
      const U32 pairs = row + 1 < rows ? low | widen(load_words(second + i)) << 16 : low;
      __builtin_memcpy(dst + i, &pairs, sizeof pairs);
    }
  }
}

MICA_INLINE void zero(Bf16* row, std::int64_t begin, std::int64_t end) {
  for (std::int64_t i = begin; i < end; i += kLanes) store(row + i, F32{});
}

void softmax_rows(const float* scores, std::int64_t stride, std::int64_t rows, std::int64_t visible, std::int64_t cols, float factor,
                  Pair* p, std::int64_t p_stride, float* shifts, float* sums) {
  softmax_rows_into(scores, stride, rows, visible, cols, factor, numbers_of(p), 2 * p_stride, shifts, sums);
}

void softmax_backward_columns(const float* scores, const float* dscores, std::int64_t stride, std::int64_t rows, std::int64_t first,
                              std::int64_t queries, std::int64_t cols, float factor, const float* lse, const float* delta, Pair* p,
                              Pair* ds, std::int64_t pair_stride) {
  for (std::int64_t r = 0; r < rows; ++r) {
    const float *score = scores + r * stride, *dscore = dscores + r * stride;
    Bf16 *p_to = numbers_of(p + r * pair_stride), *ds_to = numbers_of(ds + r * pair_stride);
    const std::int64_t from = first + r > 0 ? first + r : 0;
    const std::int64_t begin = from < cols ? from / kLanes * kLanes : cols;
    zero(p_to, 0, begin);
    zero(ds_to, 0, begin);
    for (std::int64_t i = begin; i < cols; i += kLanes) {
      F32 probability = exp(fma(load(score + i), splat(factor), -load(lse + i)));
      F32 d = (load(dscore + i) - load(delta + i)) * (probability * factor);
      if (i < from || i + kLanes > queries) {
        const std::int64_t end = queries > i ? queries - i : 0;
        probability = keep_first(F32{}, from - i, keep_first(probability, end, F32{}));
        d = keep_first(F32{}, from - i, keep_first(d, end, F32{}));
      }
      store(p_to + i, probability);
      store(ds_to + i, d);
    }
  }
}

/// kCols sums of each of kRows rows, as in thin_product.cpp.
template <int kRows, int kCols>
MICA_WITH_BF16 void thin_columns(const std::uint16_t* w, std::int64_t ldw, const Pair* x, std::int64_t ldx, std::int64_t k, float* c,
                                 std::int64_t ldc) {
  __m512 sum[kRows][kCols];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int j = 0; j < kCols; ++j) sum[r][j] = _mm512_setzero_ps();
  }
  for (std::int64_t i = 0; i < k; i += 2 * kLanes) {
    const __mmask32 mask = k - i >= 2 * kLanes ? ~0U : (1U << (k - i)) - 1U;
    __m512bh weights[kCols];
#pragma GCC unroll 4
    for (int j = 0; j < kCols; ++j) {
      if constexpr (kCols > 1) __builtin_prefetch(w + (j + kCols) * ldw + i, 0, 2);
      weights[j] = reinterpret_cast<__m512bh>(_mm512_maskz_loadu_epi16(mask, w + j * ldw + i));
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const __m512bh row = load_pairs(x + r * ldx + i / 2);
#pragma GCC unroll 4
      for (int j = 0; j < kCols; ++j) sum[r][j] = _mm512_dpbf16_ps(sum[r][j], row, weights[j]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int j = 0; j < kCols; ++j) c[r * ldc + j] = _mm512_reduce_add_ps(sum[r][j]);
  }
}

template <int kRows>
void thin_rows(const std::uint16_t* w, std::int64_t ldw, const Pair* x, std::int64_t ldx, std::int64_t rows, std::int64_t k,
               std::int64_t cols, float* c, std::int64_t ldc) {
  if constexpr (kRows > 0) {
    if (rows < kRows) return thin_rows<kRows - 1>(w, ldw, x, ldx, rows, k, cols, c, ldc);
    constexpr int kCols = kRows <= 2 ? 1 : 3;
    std::int64_t j = 0;
    for (; j + kCols <= cols; j += kCols) thin_columns<kRows, kCols>(w + j * ldw, ldw, x, ldx, k, c + j, ldc);
    for (; j < cols; ++j) thin_columns<kRows, 1>(w + j * ldw, ldw, x, ldx, k, c + j, ldc);
  }
}

void thin_product(const void* w, std::int64_t ldw, const Pair* x, std::int64_t ldx, std::int64_t rows, std::int64_t k, std::int64_t cols,
                  float* c, std::int64_t ldc) {
  thin_rows<kThinRows>(static_cast<const std::uint16_t*>(w), ldw, x, ldx, rows, k, cols, c, ldc);
}

constexpr std::int64_t kBlockRows = 32, kBlockCols = 8;

/// Up to kBlockCols numbers of the rows `first`, first + 8, first + 16 and first + 24, a quarter of the register each; zeros for rows that
/// are not there.
MICA_INLINE __m512i load_quarters(const std::uint16_t* x, std::int64_t ldx, std::int64_t first, std::int64_t rows, __mmask8 cols) {
  const auto quarter = [=](std::int64_t row)
                           MICA_INLINE_LAMBDA { return row < rows ? _mm_maskz_loadu_epi16(cols, x + row * ldx) : _mm_setzero_si128(); };
  __m512i v = _mm512_castsi128_si512(quarter(first));
  v = _mm512_inserti32x4(v, quarter(first + 8), 1);
  v = _mm512_inserti32x4(v, quarter(first + 16), 2);
  return _mm512_inserti32x4(v, quarter(first + 24), 3);
}

/// to[c * ldt + r] = x[r * ldx + c] for up to kBlockRows and kBlockCols: 8 x 8 numbers in each quarter of the registers, so that a register
/// is a column in the end.
MICA_INLINE void transpose_block(const std::uint16_t* x, std::int64_t ldx, std::int64_t rows, std::int64_t cols, std::uint16_t* to,
                                 std::int64_t ldt) {
  __m512i v[8], w[8];
#pragma GCC unroll 8
  for (int r = 0; r < 8; ++r) v[r] = load_quarters(x, ldx, r, rows, static_cast<__mmask8>((1U << cols) - 1U));
#pragma GCC unroll 4
  for (int i = 0; i < 8; i += 2) {
    w[i] = _mm512_unpacklo_epi16(v[i], v[i + 1]);
    w[i + 1] = _mm512_unpackhi_epi16(v[i], v[i + 1]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4) {
    v[i] = _mm512_unpacklo_epi32(w[i], w[i + 2]);
    v[i + 1] = _mm512_unpackhi_epi32(w[i], w[i + 2]);
    v[i + 2] = _mm512_unpacklo_epi32(w[i + 1], w[i + 3]);
    v[i + 3] = _mm512_unpackhi_epi32(w[i + 1], w[i + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    w[2 * i] = _mm512_unpacklo_epi64(v[i], v[i + 4]);
    w[2 * i + 1] = _mm512_unpackhi_epi64(v[i], v[i + 4]);
  }
  const auto there = static_cast<__mmask32>((std::uint64_t{1} << rows) - 1U);
#pragma GCC unroll 8
  for (int c = 0; c < 8; ++c) {
    if (c < cols) _mm512_mask_storeu_epi16(to + c * ldt, there, w[c]);
  }
}

void transpose(const void* x, std::int64_t ldx, std::int64_t rows, std::int64_t cols, void* to, std::int64_t ldt) {
  const auto* from = static_cast<const std::uint16_t*>(x);
  auto* turned = static_cast<std::uint16_t*>(to);
  for (std::int64_t row = 0; row < rows; row += kBlockRows) {
    const std::int64_t there = rows - row < kBlockRows ? rows - row : kBlockRows;
    std::int64_t col = 0;
    if (there == kBlockRows) {
      for (; col + kBlockCols <= cols; col += kBlockCols) {
        transpose_block(from + row * ldx + col, ldx, kBlockRows, kBlockCols, turned + col * ldt + row, ldt);
      }
    }
    for (; col < cols; col += kBlockCols) {
      transpose_block(from + row * ldx + col, ldx, there, cols - col < kBlockCols ? cols - col : kBlockCols, turned + col * ldt + row, ldt);
    }
  }
}

}  // namespace

void install_pair_tiles(PairTiles& tiles) {
  tiles.thin_product = thin_product;
  tiles.multiply = multiply;
  tiles.load_rows = load_rows;
  tiles.interleave_rows = interleave_rows;
  tiles.transpose = transpose;
  tiles.softmax_rows = softmax_rows;
  tiles.softmax_backward_columns = softmax_backward_columns;
}

}  // namespace mica::cpu::MICA_ISA
