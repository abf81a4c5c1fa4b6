// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <immintrin.h>

// Included by vec.hpp; the operations are explained in vec_generic.hpp.
namespace mica::cpu::MICA_ISA {
namespace {

inline constexpr int kLanes = 8;
using F32 = float __attribute__((vector_size(32)));
using I32 = std::int32_t __attribute__((vector_size(32)));
using U32 = std::uint32_t __attribute__((vector_size(32)));
using U64 = std::uint64_t __attribute__((vector_size(32)));
using U16 = std::uint16_t __attribute__((vector_size(16)));
using F64 = double __attribute__((vector_size(32)));

MICA_INLINE F32 fma(F32 a, F32 b, F32 c) { return _mm256_fmadd_ps(a, b, c); }
MICA_INLINE F64 fma(F64 a, F64 b, F64 c) { return _mm256_fmadd_pd(a, b, c); }
MICA_INLINE F32 min_or_second(F32 a, F32 b) { return _mm256_min_ps(a, b); }
MICA_INLINE F32 max_or_second(F32 a, F32 b) { return _mm256_max_ps(a, b); }
MICA_INLINE F32 sqrt(F32 x) { return _mm256_sqrt_ps(x); }
MICA_INLINE F32 scale_by_power(F32 x, F32 n) {
  const I32 whole = __builtin_convertvector(n, I32);
  const I32 half = whole >> 1;
  return x * reinterpret_cast<F32>((half + 127) << 23) * reinterpret_cast<F32>((whole - half + 127) << 23);
}
MICA_INLINE U64 multiply_even(U32 a, U32 b) {
  return reinterpret_cast<U64>(_mm256_mul_epu32(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)));
}
MICA_INLINE F64 low_as_double(F32 x) { return _mm256_cvtps_pd(_mm256_castps256_ps128(x)); }
MICA_INLINE F64 high_as_double(F32 x) { return _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1)); }
MICA_INLINE U32 interleave_low(U32 a, U32 b) { return shuffle<0, 8, 1, 9, 2, 10, 3, 11>(a, b); }
MICA_INLINE U32 interleave_high(U32 a, U32 b) { return shuffle<4, 12, 5, 13, 6, 14, 7, 15>(a, b); }

MICA_INLINE __m256i mask_first(std::int64_t n) {
  const I32 lanes{0, 1, 2, 3, 4, 5, 6, 7};
  return reinterpret_cast<__m256i>(lanes < static_cast<std::int32_t>(n));
}
MICA_INLINE F32 load_first(const float* p, std::int64_t n, float rest) {
  const __m256i mask = mask_first(n);
  return _mm256_blendv_ps(F32{} + rest, _mm256_maskload_ps(p, mask), _mm256_castsi256_ps(mask));
}
MICA_INLINE U16 load_first(const std::uint16_t* p, std::int64_t n) {
  U16 v{};
  for (int l = 0; l < kLanes - 1; ++l) {
    if (l < n) v[l] = p[l];
  }
  return v;
}
MICA_INLINE void store_first(float* p, F32 v, std::int64_t n) { _mm256_maskstore_ps(p, mask_first(n), v); }
MICA_INLINE void store_first(std::uint16_t* p, U16 v, std::int64_t n) {
  for (int l = 0; l < kLanes - 1; ++l) {
    if (l < n) p[l] = v[l];
  }
}

}  // namespace
}  // namespace mica::cpu::MICA_ISA
