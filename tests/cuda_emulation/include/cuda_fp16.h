// SPDX-License-Identifier: Apache-2.0
#pragma once

// CUDA's __half and its pair, on top of mica::f16; see [Note: emulated headers] in vector_types.h.
#include "mica/core/half.hpp"

#include "vector_functions.h"

struct __half_raw {
  unsigned short x;
};
struct alignas(2) __half {
  __half() = default;
  __half(float value) : __x(mica::f16(value).bits) {}
  __half(__half_raw raw) : __x(raw.x) {}
  operator float() const {
    mica::f16 value;
    value.bits = __x;
    return static_cast<float>(value);
  }
  operator __half_raw() const { return {__x}; }

 protected:
  unsigned short __x;
};
struct alignas(4) __half2 {
  __half x, y;
};
using half = __half;
using half2 = __half2;

inline float __half2float(__half a) { return static_cast<float>(a); }
inline __half __float2half(float a) { return __half(a); }
inline __half __float2half_rn(float a) { return __half(a); }
inline __half __ushort_as_half(unsigned short bits) { return __half(__half_raw{bits}); }
inline unsigned short __half_as_ushort(__half a) { return static_cast<__half_raw>(a).x; }

inline float2 __half22float2(__half2 a) { return {__half2float(a.x), __half2float(a.y)}; }
inline __half2 __float22half2_rn(float2 a) { return {__half(a.x), __half(a.y)}; }
inline __half2 __floats2half2_rn(float a, float b) { return {__half(a), __half(b)}; }
inline __half2 __float2half2_rn(float a) { return {__half(a), __half(a)}; }
inline __half2 __halves2half2(__half a, __half b) { return {a, b}; }
inline __half2 __half2half2(__half a) { return {a, a}; }
inline __half __low2half(__half2 a) { return a.x; }
inline __half __high2half(__half2 a) { return a.y; }
inline float __low2float(__half2 a) { return __half2float(a.x); }
inline float __high2float(__half2 a) { return __half2float(a.y); }
