// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "elements.hpp"
#include "install.hpp"

namespace mica::cpu::MICA_ISA {
namespace {

/// How weights of one dtype come in vectors. A step takes kStep weights of a row as kStep / kLanes vectors; a row of x has its
/// elements in the same order.
template <class Type>
struct Weights {  // f32 and f16: as they lie
  static constexpr int kParts = 1;
  static constexpr std::int64_t kStep = kLanes;
  static constexpr std::int64_t place(std::int64_t i) { return i; }

  F32 part[kParts];
  MICA_INLINE explicit Weights(const Type* p) : part{load(p)} {}
  MICA_INLINE Weights(const Type* p, std::int64_t n) : part{load_part(p, n)} {}
};

/// bf16: two weights in each 32-bit lane become floats by a shift and by a mask, which is less work than widening each.
template <>
struct Weights<Bf16> {
  static constexpr int kParts = 2;
  static constexpr std::int64_t kStep = 2 * kLanes;
  /// Of a block, the elements with even numbers first.
  static constexpr std::int64_t place(std::int64_t i) { return i / kStep * kStep + i % 2 * kLanes + i % kStep / 2; }

  F32 part[kParts];
  MICA_INLINE explicit Weights(const Bf16* p) {
    U32 words;
    __builtin_memcpy(&words, p, sizeof words);
    part[0] = from_bits(words << 16);
    part[1] = from_bits(words & 0xffff0000U);
  }
  MICA_INLINE Weights(const Bf16* p, std::int64_t n) {
    U32 words{};
    for (std::int64_t i = 0; i < n; ++i) words[i / 2] |= static_cast<std::uint32_t>(p[i].word) << (i % 2 * 16);
    part[0] = from_bits(words << 16);
    part[1] = from_bits(words & 0xffff0000U);
  }
};

template <int kRows, int kCols, class W>
MICA_INLINE void add_step(const W (&w)[kCols], const float* x, std::int64_t ldx, F32 (&acc)[kRows][kCols]) {
  for (int r = 0; r < kRows; ++r) {
    for (int part = 0; part < W::kParts; ++part) {
      const F32 xs = load(x + r * ldx + part * kLanes);
      for (int j = 0; j < kCols; ++j) acc[r][j] = fma(xs, w[j].part[part], acc[r][j]);
    }
  }
}

/// kCols sums of each of kRows rows: every weight is loaded once for all rows.
template <int kRows, int kCols, class Type, std::size_t... kCol>
MICA_INLINE void columns(const Type* w, std::int64_t ldw, const float* x, std::int64_t ldx, std::int64_t k, float* c, std::int64_t ldc,
                         std::index_sequence<kCol...>) {
  using W = Weights<Type>;
  F32 acc[kRows][kCols] = {};
  std::int64_t i = 0;
  for (; i + W::kStep <= k; i += W::kStep) {
    // The weights that come next: a processor's own prefetching is good at one stream only. Past the last row nothing happens.
    if constexpr (kCols > 1 || kRows > 1) (__builtin_prefetch(w + static_cast<std::int64_t>(kCol + kCols) * ldw + i, 0, 2), ...);
    const W ws[kCols] = {W(w + static_cast<std::int64_t>(kCol) * ldw + i)...};
    add_step<kRows, kCols>(ws, x + i, ldx, acc);
  }
  if (i < k) {
    const W ws[kCols] = {W(w + static_cast<std::int64_t>(kCol) * ldw + i, k - i)...};
    add_step<kRows, kCols>(ws, x + i, ldx, acc);
  }
  for (int r = 0; r < kRows; ++r) {
    for (int j = 0; j < kCols; ++j) c[r * ldc + j] = sum_lanes(acc[r][j]);
  }
}

template <int kRows, class Type>
void product(const Type* w, std::int64_t ldw, const float* x, std::int64_t ldx, std::int64_t k, std::int64_t cols, float* c,
             std::int64_t ldc) {
  // As many columns as there are registers for. For one row of x, weights come fastest in one stream, and 16 lanes keep up with it.
  constexpr int kSums = kLanes == 16 ? 16 : 8;
  constexpr int kCols = kRows == 1 && kLanes == 16 ? 1 : kRows * 4 <= kSums ? 4 : kRows * 2 <= kSums ? 2 : 1;
  std::int64_t j = 0;
  for (; j + kCols <= cols; j += kCols) {
    columns<kRows, kCols>(w + j * ldw, ldw, x, ldx, k, c + j, ldc, std::make_index_sequence<kCols>{});
  }
  for (; j < cols; ++j) columns<kRows, 1>(w + j * ldw, ldw, x, ldx, k, c + j, ldc, std::make_index_sequence<1>{});
}

void thin_product(DType w_dtype, const void* w, std::int64_t ldw, const float* x, std::int64_t ldx, std::int64_t rows, std::int64_t k,
                  std::int64_t cols, float* c, std::int64_t ldc) {
  with_type(w_dtype, [=](auto type) {
    const auto* weights = typed(w, type);
    switch (rows) {
      case 1:
        return product<1>(weights, ldw, x, ldx, k, cols, c, ldc);
      case 2:
        return product<2>(weights, ldw, x, ldx, k, cols, c, ldc);
      case 3:
        return product<3>(weights, ldw, x, ldx, k, cols, c, ldc);
      case 4:
        return product<4>(weights, ldw, x, ldx, k, cols, c, ldc);
      case 5:
        return product<5>(weights, ldw, x, ldx, k, cols, c, ldc);
      case 6:
        return product<6>(weights, ldw, x, ldx, k, cols, c, ldc);
      case 7:
        return product<7>(weights, ldw, x, ldx, k, cols, c, ldc);
      case kThinRows:
        return product<8>(weights, ldw, x, ldx, k, cols, c, ldc);
      default:
        __builtin_trap();
    }
  });
}

void thin_row(DType w_dtype, DType x_dtype, const void* x, std::int64_t k, float* out) {
  with_type(w_dtype, [=](auto w_type) {
    with_type(x_dtype, [=](auto x_type) {
      using W = Weights<decltype(w_type)>;
      const auto* from = typed(x, x_type);
      for (std::int64_t i = k; i < thin_length(k); ++i) out[W::place(i)] = 0;
      for_vectors(0, k, [=](std::int64_t i, auto lanes) MICA_INLINE_LAMBDA {
        const F32 v = load(from + i, lanes);
        const std::int64_t n = k - i < kLanes ? k - i : kLanes;
        for (std::int64_t l = 0; l < n; ++l) out[W::place(i + l)] = v[l];
      });
    });
  });
}

}  // namespace

void install_thin_product(Loops& table) {
  table.thin_row = thin_row;
  table.thin_product = thin_product;
}

}  // namespace mica::cpu::MICA_ISA
