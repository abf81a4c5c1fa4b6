// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "elements.hpp"
#include "math.hpp"

// The softmax of Tiles and PairTiles, whose results are f32 or bf16.
namespace mica::cpu::MICA_ISA {
namespace {

/// As Tiles::softmax_rows; row r goes to `to` + r * to_stride, which may be the scores themselves.
template <class T>
MICA_INLINE void softmax_rows_into(const float* scores, std::int64_t stride, std::int64_t rows, std::int64_t visible, std::int64_t cols,
                                   float factor, T* to, std::int64_t to_stride, float* shifts, float* sums) {
  const F32 lowest = splat(-__builtin_inff());
  for (std::int64_t r = 0; r < rows; ++r, scores += stride, to += to_stride) {
    const std::int64_t n = visible + r;
    F32 max = lowest;
    for_vectors(0, n,
                [&](std::int64_t i, auto lanes) MICA_INLINE_LAMBDA { max = max_or_second(keep(load(scores + i), lanes, lowest), max); });
    const float shift = factor * max_lanes(max);
    F32 sum{};
    // Whole vectors throughout: cols is a multiple of kTilePad, and all scores after n are masked.
    for_vectors(0, n, [&](std::int64_t i, auto lanes) MICA_INLINE_LAMBDA {
      const F32 e = keep(exp(fma(load(scores + i), splat(factor), splat(-shift))), lanes, F32{});
      store(to + i, e);
      sum += e;
    });
    for (std::int64_t i = (n + kLanes - 1) / kLanes * kLanes; i < cols; i += kLanes) store(to + i, F32{});
    shifts[r] = shift;
    sums[r] = sum_lanes(sum);
  }
}

}  // namespace
}  // namespace mica::cpu::MICA_ISA
