// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <immintrin.h>

// Included by vec.hpp; the operations are explained in vec_generic.hpp.
namespace mica::cpu::MICA_ISA {
namespace {

inline constexpr int kLanes = 16;
using F32 = float __attribute__((vector_size(64)));
using I32 = std::int32_t __attribute__((vector_size(64)));
using U32 = std::uint32_t __attribute__((vector_size(64)));
using U64 = std::uint64_t __attribute__((vector_size(64)));
using U16 = std::uint16_t __attribute__((vector_size(32)));
using F64 = double __attribute__((vector_size(64)));

MICA_INLINE F32 fma(F32 a, F32 b, F32 c) { return _mm512_fmadd_ps(a, b, c); }
MICA_INLINE F64 fma(F64 a, F64 b, F64 c) { return _mm512_fmadd_pd(a, b, c); }
MICA_INLINE F32 min_or_second(F32 a, F32 b) { return _mm512_min_ps(a, b); }
MICA_INLINE F32 max_or_second(F32 a, F32 b) { return _mm512_max_ps(a, b); }
MICA_INLINE F32 sqrt(F32 x) { return _mm512_sqrt_ps(x); }
MICA_INLINE F32 scale_by_power(F32 x, F32 n) { return _mm512_scalef_ps(x, n); }
MICA_INLINE U64 multiply_even(U32 a, U32 b) {
  return reinterpret_cast<U64>(_mm512_mul_epu32(reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b)));
}
MICA_INLINE F64 low_as_double(F32 x) { return _mm512_cvtps_pd(_mm512_castps512_ps256(x)); }
MICA_INLINE F64 high_as_double(F32 x) { return _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1)); }
MICA_INLINE U32 interleave_low(U32 a, U32 b) { return shuffle<0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23>(a, b); }
MICA_INLINE U32 interleave_high(U32 a, U32 b) { return shuffle<8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31>(a, b); }

MICA_INLINE __mmask16 mask_first(std::int64_t n) { return static_cast<__mmask16>((1U << n) - 1U); }
MICA_INLINE F32 load_first(const float* p, std::int64_t n, float rest) { return _mm512_mask_loadu_ps(F32{} + rest, mask_first(n), p); }
MICA_INLINE U16 load_first(const std::uint16_t* p, std::int64_t n) {
  return reinterpret_cast<U16>(_mm256_maskz_loadu_epi16(mask_first(n), p));
}
MICA_INLINE void store_first(float* p, F32 v, std::int64_t n) { _mm512_mask_storeu_ps(p, mask_first(n), v); }
MICA_INLINE void store_first(std::uint16_t* p, U16 v, std::int64_t n) {
  _mm256_mask_storeu_epi16(p, mask_first(n), reinterpret_cast<__m256i>(v));
}

}  // namespace
}  // namespace mica::cpu::MICA_ISA
