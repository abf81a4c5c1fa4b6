// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "row_sum.hpp"

// Backward of layer norm and of root mean square norm: the second is the first with a mean of 0 and without beta (kCentred
// false).
namespace mica::cpu::MICA_ISA {
namespace {

/// Whether and how dx is written: a template argument, so that the loops have no branches.
enum class InputGradient { none, overwrite, accumulate };

/// The operands of some rows, beginning with the first of them.
template <class Type>
struct BackwardRows {
  const Type* dy;
  const Type* x;
  const Type* gamma;
  const float* mean;  // kCentred only, like dbeta
  const float* rstd;
  std::int64_t cols;
  Type* dx;
  float* dgamma;  // null: no parameters' gradients
  float* dbeta;
};

template <bool kCentred, class Type, class Tail>
MICA_INLINE F32 centred(const BackwardRows<Type>& rows, std::int64_t r, std::int64_t i, Tail lanes) {
  const F32 x = load(rows.x + r * rows.cols + i, lanes);
  if constexpr (kCentred) return x - rows.mean[r];
  return x;
}

/// With g = gamma dy and n the normalised x: the row's means of g (kCentred only) and of g n.
struct RowMeans {
  float g;
  float gn;
};
template <bool kCentred, class Type>
MICA_INLINE RowMeans row_means(const BackwardRows<Type>& rows, std::int64_t r) {
  const Type *dy = rows.dy + r * rows.cols, *dx = rows.dx + r * rows.cols;
  F32 sum_g[2] = {}, sum_gx[2] = {};
  const auto add = [&](std::int64_t i, auto lanes, int v) MICA_INLINE_LAMBDA {
    __builtin_prefetch(dx + i, 1);  // the only operand that this pass does not load
    const F32 g = load(dy + i, lanes) * load(rows.gamma + i, lanes);
    if constexpr (kCentred) sum_g[v] += g;
    sum_gx[v] = fma(g, centred<kCentred>(rows, r, i, lanes), sum_gx[v]);
  };
  std::int64_t i = 0;
  for (; i + 2 * kLanes <= rows.cols; i += 2 * kLanes) {
    add(i, Whole{}, 0);
    add(i + kLanes, Whole{}, 1);
  }
  for_vectors(i, rows.cols, [&](std::int64_t j, auto lanes) MICA_INLINE_LAMBDA { add(j, lanes, 0); });
  const float n = static_cast<float>(rows.cols);
  return {sum_lanes(sum_g[0] + sum_g[1]) / n, sum_lanes(sum_gx[0] + sum_gx[1]) / n * rows.rstd[r]};
}

/// dx = rstd (g - mean(g) - n mean(g n)); dgamma += dy n; dbeta += dy. Several rows at once, so that the parameters'
/// sums are loaded and stored less often.
template <bool kCentred, int kRows, InputGradient kInput, bool kParams, class Type>
MICA_INLINE void backward_rows(const BackwardRows<Type>& rows) {
  RowMeans means[kRows] = {};
  if constexpr (kInput != InputGradient::none) {
    for (int r = 0; r < kRows; ++r) means[r] = row_means<kCentred>(rows, r);
  }
  for_vectors(0, rows.cols, [&](std::int64_t i, auto lanes) MICA_INLINE_LAMBDA {
    F32 sum_gamma{}, sum_beta{};
    for (int r = 0; r < kRows; ++r) {
      const std::int64_t at = r * rows.cols + i;
      const F32 dy = load(rows.dy + at, lanes);
      const F32 n = centred<kCentred>(rows, r, i, lanes) * rows.rstd[r];
      if constexpr (kParams) {
        sum_gamma = fma(dy, n, sum_gamma);
        if constexpr (kCentred) sum_beta += dy;
      }
      if constexpr (kInput != InputGradient::none) {
        F32 g = dy * load(rows.gamma + i, lanes);
        if constexpr (kCentred) g = g - means[r].g;
        const F32 old = kInput == InputGradient::accumulate ? load(rows.dx + at, lanes) : F32{};
        store(rows.dx + at, fma(fma(n, splat(-means[r].gn), g), splat(rows.rstd[r]), old), lanes);
      }
    }
    if constexpr (kParams) {
      store(rows.dgamma + i, load(rows.dgamma + i, lanes) + sum_gamma, lanes);
      if constexpr (kCentred) store(rows.dbeta + i, load(rows.dbeta + i, lanes) + sum_beta, lanes);
    }
  });
}

template <bool kCentred, InputGradient kInput, bool kParams, class Type>
void backward(BackwardRows<Type> rows, std::int64_t num_rows) {
  constexpr int kRows = 4;
  const auto advance = [&](int by) {
    rows.dy += by * rows.cols, rows.x += by * rows.cols, rows.rstd += by;
    if (kCentred) rows.mean += by;
    if (kInput != InputGradient::none) rows.dx += by * rows.cols;
  };
  for (; num_rows >= kRows; num_rows -= kRows, advance(kRows)) backward_rows<kCentred, kRows, kInput, kParams>(rows);
  for (; num_rows > 0; --num_rows, advance(1)) backward_rows<kCentred, 1, kInput, kParams>(rows);
}

template <bool kCentred, InputGradient kInput, class Type>
void backward(const BackwardRows<Type>& rows, std::int64_t num_rows) {
  if (rows.dgamma) {
    backward<kCentred, kInput, true>(rows, num_rows);
  } else {
    backward<kCentred, kInput, false>(rows, num_rows);
  }
}

/// Rows [begin, end).
template <bool kCentred>
void norm_backward(DType dtype, const void* dy, const void* x, const void* gamma, const float* mean, const float* rstd, std::int64_t cols,
                   void* dx, Write dx_mode, float* dgamma, float* dbeta, std::int64_t begin, std::int64_t end) {
  with_type(dtype, [=](auto type) {
    using Type = decltype(type);
    BackwardRows<Type> rows{typed(dy, type) + begin * cols,
                            typed(x, type) + begin * cols,
                            typed(gamma, type),
                            kCentred ? mean + begin : nullptr,
                            rstd + begin,
                            cols,
                            nullptr,
                            dgamma,
                            dbeta};
    if (dx == nullptr) return backward<kCentred, InputGradient::none>(rows, end - begin);
    rows.dx = typed(dx, type) + begin * cols;
    if (dx_mode == Write::overwrite) return backward<kCentred, InputGradient::overwrite>(rows, end - begin);
    return backward<kCentred, InputGradient::accumulate>(rows, end - begin);
  });
}

}  // namespace
}  // namespace mica::cpu::MICA_ISA
