// SPDX-License-Identifier: Apache-2.0
#pragma once

// Included by vec.hpp. Compiler vectors of 16 bytes: SSE on x86-64, any other processor's baseline elsewhere.
namespace mica::cpu::MICA_ISA {
namespace {

inline constexpr int kLanes = 4;
using F32 = float __attribute__((vector_size(16)));
using I32 = std::int32_t __attribute__((vector_size(16)));
using U32 = std::uint32_t __attribute__((vector_size(16)));
using U64 = std::uint64_t __attribute__((vector_size(16)));
using U16 = std::uint16_t __attribute__((vector_size(8)));
using F64 = double __attribute__((vector_size(16)));  // half as many lanes

/// a * b + c, fused where the processor has it.
MICA_INLINE F32 fma(F32 a, F32 b, F32 c) { return a * b + c; }
/// a < b ? a : b, so b when one is NaN.
MICA_INLINE F32 min_or_second(F32 a, F32 b) { return a < b ? a : b; }
/// a > b ? a : b, so b when one is NaN.
MICA_INLINE F32 max_or_second(F32 a, F32 b) { return a > b ? a : b; }
MICA_INLINE F32 sqrt(F32 x) {
  F32 y{};
  for (int l = 0; l < kLanes; ++l) y[l] = __builtin_sqrtf(x[l]);
  return y;
}
/// x * 2^n for integral n in [-252, 254], with one rounding.
MICA_INLINE F32 scale_by_power(F32 x, F32 n) {
  const I32 whole = __builtin_convertvector(n, I32);
  const I32 half = whole >> 1;
  return x * reinterpret_cast<F32>((half + 127) << 23) * reinterpret_cast<F32>((whole - half + 127) << 23);
}
/// Products of the even lanes, 64 bits each.
MICA_INLINE U64 multiply_even(U32 a, U32 b) { return (reinterpret_cast<U64>(a) & 0xffffffffU) * (reinterpret_cast<U64>(b) & 0xffffffffU); }
MICA_INLINE F64 low_as_double(F32 x) { return F64{static_cast<double>(x[0]), static_cast<double>(x[1])}; }
MICA_INLINE F64 high_as_double(F32 x) { return F64{static_cast<double>(x[2]), static_cast<double>(x[3])}; }
MICA_INLINE F64 fma(F64 a, F64 b, F64 c) { return a * b + c; }
/// a[0] b[0] a[1] b[1] ...
MICA_INLINE U32 interleave_low(U32 a, U32 b) { return shuffle<0, 4, 1, 5>(a, b); }
MICA_INLINE U32 interleave_high(U32 a, U32 b) { return shuffle<2, 6, 3, 7>(a, b); }

/// The first n < kLanes elements, `rest` behind them.
MICA_INLINE F32 load_first(const float* p, std::int64_t n, float rest) {
  F32 v = F32{} + rest;
  for (int l = 0; l < kLanes - 1; ++l) {
    if (l < n) v[l] = p[l];
  }
  return v;
}
MICA_INLINE U16 load_first(const std::uint16_t* p, std::int64_t n) {
  U16 v{};
  for (int l = 0; l < kLanes - 1; ++l) {
    if (l < n) v[l] = p[l];
  }
  return v;
}
MICA_INLINE void store_first(float* p, F32 v, std::int64_t n) {
  for (int l = 0; l < kLanes - 1; ++l) {
    if (l < n) p[l] = v[l];
  }
}
MICA_INLINE void store_first(std::uint16_t* p, U16 v, std::int64_t n) {
  for (int l = 0; l < kLanes - 1; ++l) {
    if (l < n) p[l] = v[l];
  }
}

}  // namespace
}  // namespace mica::cpu::MICA_ISA
