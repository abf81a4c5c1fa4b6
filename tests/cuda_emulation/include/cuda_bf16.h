// SPDX-License-Identifier: Apache-2.0
#pragma once

// CUDA's __nv_bfloat16 and its pair, on top of mica::bf16; see [Note: emulated headers] in vector_types.h.
#include "mica/core/half.hpp"

#include "vector_functions.h"

struct __nv_bfloat16_raw {
  unsigned short x;
};
struct alignas(2) __nv_bfloat16 {
  __nv_bfloat16() = default;
  __nv_bfloat16(float value) : __x(mica::bf16(value).bits) {}
  __nv_bfloat16(__nv_bfloat16_raw raw) : __x(raw.x) {}
  operator float() const {
    mica::bf16 value;
    value.bits = __x;
    return static_cast<float>(value);
  }
  operator __nv_bfloat16_raw() const { return {__x}; }

 protected:
  unsigned short __x;
};
struct alignas(4) __nv_bfloat162 {
  __nv_bfloat16 x, y;
};
using nv_bfloat16 = __nv_bfloat16;
using nv_bfloat162 = __nv_bfloat162;

inline float __bfloat162float(__nv_bfloat16 a) { return static_cast<float>(a); }
inline __nv_bfloat16 __float2bfloat16(float a) { return __nv_bfloat16(a); }
inline __nv_bfloat16 __float2bfloat16_rn(float a) { return __nv_bfloat16(a); }
inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits) { return __nv_bfloat16(__nv_bfloat16_raw{bits}); }
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 a) { return static_cast<__nv_bfloat16_raw>(a).x; }

inline float2 __bfloat1622float2(__nv_bfloat162 a) { return {__bfloat162float(a.x), __bfloat162float(a.y)}; }
inline __nv_bfloat162 __float22bfloat162_rn(float2 a) { return {__nv_bfloat16(a.x), __nv_bfloat16(a.y)}; }
inline __nv_bfloat162 __floats2bfloat162_rn(float a, float b) { return {__nv_bfloat16(a), __nv_bfloat16(b)}; }
inline __nv_bfloat162 __float2bfloat162_rn(float a) { return {__nv_bfloat16(a), __nv_bfloat16(a)}; }
inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 a, __nv_bfloat16 b) { return {a, b}; }
inline __nv_bfloat162 __bfloat162bfloat162(__nv_bfloat16 a) { return {a, a}; }
inline __nv_bfloat16 __low2bfloat16(__nv_bfloat162 a) { return a.x; }
inline __nv_bfloat16 __high2bfloat16(__nv_bfloat162 a) { return a.y; }
inline float __low2float(__nv_bfloat162 a) { return __bfloat162float(a.x); }
inline float __high2float(__nv_bfloat162 a) { return __bfloat162float(a.y); }
