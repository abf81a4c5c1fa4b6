// SPDX-License-Identifier: Apache-2.0
#include "../tiles.hpp"
#include "elements.hpp"
#include "softmax_rows.hpp"

// The row operations of attention between its products, see Tiles: many short rows in one call.
namespace mica::cpu::MICA_ISA {
namespace {

/// A head's rows are a whole token apart in memory, which hardware does not prefetch: rows to prefetch ahead.
constexpr std::int64_t kRowsAhead = 8;
constexpr std::int64_t kLineBytes = 64;

template <class T>
MICA_INLINE void prefetch_row(const T* row, std::int64_t dim) {
  for (std::int64_t i = 0; i < dim; i += kLineBytes / static_cast<std::int64_t>(sizeof(T))) __builtin_prefetch(row + i);
}

void load_rows(const void* x, DType dtype, std::int64_t stride, std::int64_t rows, std::int64_t dim, std::int64_t padded_dim, float* dst) {
  with_type(dtype, [=](auto type) {
    const auto* from = typed(x, type);
    for (std::int64_t row = 0; row < rows; ++row) {
      if (row + kRowsAhead < rows) prefetch_row(from + (row + kRowsAhead) * stride, dim);
      float* to = dst + row * padded_dim;
      // The last vector is stored whole: its lanes past dim are zero, as the padding must be.
      for_vectors(0, dim, [=](std::int64_t i, auto lanes) MICA_INLINE_LAMBDA { store(to + i, load(from + row * stride + i, lanes)); });
      for (std::int64_t i = (dim + kLanes - 1) / kLanes * kLanes; i < padded_dim; i += kLanes) store(to + i, F32{});
    }
  });
}

void store_rows(const float* x, std::int64_t padded_dim, const float* factors, std::int64_t rows, std::int64_t dim, void* dst, DType dtype,
                std::int64_t stride) {
  with_type(dtype, [=](auto type) {
    auto* to = typed(dst, type);
    for (std::int64_t row = 0; row < rows; ++row) {
      const float factor = factors ? factors[row] : 1.0F;
      for_vectors(0, dim, [=](std::int64_t i, auto lanes) MICA_INLINE_LAMBDA {
        store(to + row * stride + i, load(x + row * padded_dim + i) * factor, lanes);
      });
    }
  });
}

MICA_INLINE void zero(float* row, std::int64_t begin, std::int64_t end) {
  for (std::int64_t i = begin; i < end; ++i) row[i] = 0;
}

void softmax_rows(float* scores, std::int64_t stride, std::int64_t rows, std::int64_t visible, std::int64_t cols, float factor,
                  float* shifts, float* sums) {
  softmax_rows_into(scores, stride, rows, visible, cols, factor, scores, stride, shifts, sums);
}

void softmax_backward_rows(float* scores, float* dscores, std::int64_t stride, std::int64_t rows, std::int64_t visible, bool is_diagonal,
                           std::int64_t cols, float factor, const float* lse, const float* delta) {
  for (std::int64_t r = 0; r < rows; ++r) {
    float *score = scores + r * stride, *dscore = dscores + r * stride;
    const std::int64_t n = is_diagonal ? visible + r : visible;
    const F32 row_lse = splat(lse[r]), row_delta = splat(delta[r]);
    for_vectors(0, n, [=](std::int64_t i, auto lanes) MICA_INLINE_LAMBDA {
      const F32 p = keep(exp(fma(load(score + i), splat(factor), -row_lse)), lanes, F32{});
      store(score + i, p);
      store(dscore + i, keep((load(dscore + i) - row_delta) * (p * factor), lanes, F32{}));
    });
    zero(score, (n + kLanes - 1) / kLanes * kLanes, cols);
    zero(dscore, (n + kLanes - 1) / kLanes * kLanes, cols);
  }
}

}  // namespace

void install_tile_rows(Tiles& tiles) {
  tiles.load_rows = load_rows;
  tiles.store_rows = store_rows;
  tiles.softmax_rows = softmax_rows;
  tiles.softmax_backward_rows = softmax_backward_rows;
}

}  // namespace mica::cpu::MICA_ISA
