// SPDX-License-Identifier: Apache-2.0
#include "install.hpp"
#include "math.hpp"
#include "row_sum.hpp"

namespace mica::cpu::MICA_ISA {
namespace {

/// kKeys scores at a time, so that their sums do not wait for each other; each score's operations are the same for any kKeys.
template <int kKeys, class Type>
MICA_INLINE float add_scores(const Type* q, const Type* keys, std::int64_t stride, std::int64_t dim, float* scores, float max) {
  F32 acc[kKeys] = {};
  for_vectors(0, dim, [&](std::int64_t i, auto lanes) MICA_INLINE_LAMBDA {
    const F32 x = load(q + i, lanes);
    for (int j = 0; j < kKeys; ++j) acc[j] = fma(x, load(keys + j * stride + i, lanes), acc[j]);
  });
  for (int j = 0; j < kKeys; ++j) {
    scores[j] = sum_lanes(acc[j]);
    max = max_or_nan(scores[j], max);
  }
  return max;
}

/// kVectors vectors of the weighted sum of values.
template <int kVectors, class Type, class Lanes>
MICA_INLINE void sum_values(const Type* values, std::int64_t stride, std::int64_t n, const float* weights, float factor, Type* y,
                            Lanes lanes) {
  F32 acc[kVectors] = {};
  for (std::int64_t j = 0; j < n; ++j) {
    const F32 weight = splat(weights[j]);
    for (int v = 0; v < kVectors; ++v) acc[v] = fma(weight, load(values + j * stride + v * kLanes, lanes), acc[v]);
  }
  for (int v = 0; v < kVectors; ++v) store(y + v * kLanes, acc[v] * factor, lanes);
}

void attend(DType dtype, const void* q, const void* keys, const void* values, std::int64_t stride, std::int64_t n, std::int64_t dim,
            float factor, float* scores, void* y) {
  with_type(dtype, [=](auto type) {
    const auto *query = typed(q, type), *k = typed(keys, type), *v = typed(values, type);
    auto* to = typed(y, type);
    constexpr int kKeys = 4, kVectors = 4;
    float max = -__builtin_inff();
    std::int64_t j = 0;
    for (; j + kKeys <= n; j += kKeys) max = add_scores<kKeys>(query, k + j * stride, stride, dim, scores + j, max);
    for (; j < n; ++j) max = add_scores<1>(query, k + j * stride, stride, dim, scores + j, max);
    const float sum = row_sum<2>(n, [=](std::int64_t i, auto lanes) MICA_INLINE_LAMBDA {
      const F32 e = exp(fma(load(scores + i, lanes), splat(factor), splat(-factor * max)));
      store(scores + i, e, lanes);
      return e;
    });
    std::int64_t i = 0;
    for (; i + kVectors * kLanes <= dim; i += kVectors * kLanes) {
      sum_values<kVectors>(v + i, stride, n, scores, 1.0F / sum, to + i, Whole{});
    }
    for_vectors(i, dim, [=](std::int64_t at, auto lanes) MICA_INLINE_LAMBDA {
      sum_values<1>(v + at, stride, n, scores, 1.0F / sum, to + at, lanes);
    });
  });
}

}  // namespace

void install_cached_attention(Loops& table) { table.attend = attend; }

}  // namespace mica::cpu::MICA_ISA
