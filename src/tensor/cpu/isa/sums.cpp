// SPDX-License-Identifier: Apache-2.0
#include "elements.hpp"
#include "install.hpp"

namespace mica::cpu::MICA_ISA {
namespace {

/// kRows rows are summed in registers before they are added to the running sums.
template <int kRows, class Type>
MICA_INLINE void add_rows(const Type* x, std::int64_t cols, std::int64_t begin, std::int64_t end, float* sums) {
  for_vectors(begin, end, [=](std::int64_t j, auto lanes) MICA_INLINE_LAMBDA {
    F32 acc = load(x + j, lanes);
    for (int r = 1; r < kRows; ++r) acc += load(x + r * cols + j, lanes);
    store(sums + j, load(sums + j, lanes) + acc, lanes);
  });
}

void column_sums(DType dtype, const void* x, std::int64_t cols, std::int64_t row_begin, std::int64_t row_end, std::int64_t col_begin,
                 std::int64_t col_end, float* sums) {
  constexpr int kRows = 8;
  with_type(dtype, [=](auto type) {
    const auto* p = typed(x, type);
    std::int64_t row = row_begin;
    for (; row + kRows <= row_end; row += kRows) add_rows<kRows>(p + row * cols, cols, col_begin, col_end, sums);
    for (; row < row_end; ++row) add_rows<1>(p + row * cols, cols, col_begin, col_end, sums);
  });
}

/// Sum of term(|x|) in double, on both halves of each vector.
template <class Type, class Term>
MICA_INLINE double sum_of_doubles(const Type* p, std::int64_t begin, std::int64_t end, Term term) {
  F64 low[2] = {}, high[2] = {};
  int v = 0;
  for_vectors(begin, end, [&](std::int64_t i, auto lanes) MICA_INLINE_LAMBDA {
    const F32 x = load(p + i, lanes);
    low[v] = term(low_as_double(x), low[v]);
    high[v] = term(high_as_double(x), high[v]);
    v ^= 1;
  });
  return sum_lanes((low[0] + low[1]) + (high[0] + high[1]));
}

double power_sum(DType dtype, const void* x, double p, std::int64_t begin, std::int64_t end) {
  return with_type(dtype, [=](auto type) {
    const auto* px = typed(x, type);
    if (p == 2) return sum_of_doubles(px, begin, end, [](F64 e, F64 sum) { return fma(e, e, sum); });
    if (p == 1) return sum_of_doubles(px, begin, end, [](F64 e, F64 sum) { return sum + (e < 0 ? -e : e); });
    double sum = 0;
    for_vectors(begin, end, [&](std::int64_t i, auto lanes) MICA_INLINE_LAMBDA {
      const F32 v = load(px + i, lanes);
      const std::int64_t n = end - i < kLanes ? end - i : kLanes;
      for (std::int64_t l = 0; l < n; ++l) sum += __builtin_pow(__builtin_fabs(static_cast<double>(v[l])), p);
    });
    return sum;
  });
}

float abs_max(DType dtype, const void* x, std::int64_t begin, std::int64_t end) {
  return with_type(dtype, [=](auto type) {
    const auto* px = typed(x, type);
    F32 acc{};
    for_vectors(begin, end, [&](std::int64_t i, auto lanes) MICA_INLINE_LAMBDA {
      acc = max_or_nan(acc, from_bits(bits(load(px + i, lanes)) & 0x7fffffffU));
    });
    float result = 0;
    for (int l = 0; l < kLanes; ++l) result = max_or_nan(result, acc[l]);
    return result;
  });
}

float dot(DType x_dtype, const void* x, DType y_dtype, const void* y, std::int64_t n) {
  return with_type(x_dtype, [=](auto x_type) {
    return with_type(y_dtype, [=](auto y_type) {
      const auto* px = typed(x, x_type);
      const auto* py = typed(y, y_type);
      F32 acc[4] = {};
      std::int64_t i = 0;
      for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
        for (int v = 0; v < 4; ++v) acc[v] = fma(load(px + i + v * kLanes), load(py + i + v * kLanes), acc[v]);
      }
      for_vectors(i, n,
                  [&](std::int64_t j, auto lanes) MICA_INLINE_LAMBDA { acc[0] = fma(load(px + j, lanes), load(py + j, lanes), acc[0]); });
      return sum_lanes((acc[0] + acc[1]) + (acc[2] + acc[3]));
    });
  });
}

}  // namespace

void install_sums(Loops& table) {
  table.column_sums = column_sums;
  table.power_sum = power_sum;
  table.abs_max = abs_max;
  table.dot = dot;
}

}  // namespace mica::cpu::MICA_ISA
