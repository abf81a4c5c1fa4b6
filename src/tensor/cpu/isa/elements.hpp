// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "mica/core/dtype.hpp"

#include "vec.hpp"

// Elements of memory as vectors of f32: load, store, and the loop over a range with its short last vector.
namespace mica::cpu::MICA_ISA {
namespace {

// mica::bf16 and mica::f16 as bare words: their inline member functions must not be emitted here ([Note: isa code]).
struct Bf16 {
  std::uint16_t word;
};
struct F16 {
  std::uint16_t word;
};

MICA_INLINE U16 load_words(const void* p) {
  U16 v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
MICA_INLINE U32 widen(U16 v) { return __builtin_convertvector(v, U32); }
MICA_INLINE U16 narrow(U32 v) { return __builtin_convertvector(v, U16); }

/// As mica::bf16: rounds to nearest even, keeps NaN.
MICA_INLINE U16 to_words(F32 x, Bf16) {
  const U32 u = bits(x);
  const U32 rounded = (u + 0x7fffU + ((u >> 16) & 1U)) >> 16;
  return narrow(x != x ? (u >> 16) | 0x40U : rounded);
}
/// Rounded away from zero with the probability that is cut off. @param noise  uniform below 2^16
MICA_INLINE U16 to_words_at_random(F32 x, U32 noise, Bf16) {
  const U32 u = bits(x);
  return narrow(x != x ? (u >> 16) | 0x40U : (u + noise) >> 16);
}
MICA_INLINE F32 from_words(U16 w, Bf16) { return from_bits(widen(w) << 16); }

/// As mica::f16.
MICA_INLINE U16 to_words(F32 x, F16) {
  const U32 u = bits(x);
  const U32 sign = (u >> 16) & 0x8000U;
  const U32 magnitude = u & 0x7fffffffU;
  const U32 subnormal = bits(from_bits(magnitude) + 0.5F) - 0x3f000000U;
  const U32 normal = (magnitude - 0x38000000U + 0xfffU + ((magnitude >> 13) & 1U)) >> 13;
  U32 word = magnitude < 0x38800000U ? subnormal : normal;
  word = magnitude >= 0x477ff000U ? U32{} + 0x7c00U : word;
  word = magnitude > 0x7f800000U ? U32{} + 0x7e00U : word;
  return narrow(sign | word);
}
MICA_INLINE F32 from_words(U16 w, F16) {
  const U32 word = widen(w);
  const U32 magnitude = word & 0x7fffU;
  // The exponent's bias is moved by a multiplication, which makes subnormals right as well.
  const U32 finite = bits(from_bits(magnitude << 13) * 0x1p112F);
  const U32 special = (magnitude << 13) | 0x7f800000U;
  return from_bits((magnitude >= 0x7c00U ? special : finite) | ((word & 0x8000U) << 16));
}

MICA_INLINE F32 load(const float* p) {
  F32 v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
MICA_INLINE void store(float* p, F32 v) { __builtin_memcpy(p, &v, sizeof v); }

template <class T>
MICA_INLINE F32 load(const T* p) {
  return from_words(load_words(p), T{});
}
template <class T>
MICA_INLINE void store(T* p, F32 v) {
  const U16 words = to_words(v, T{});
  __builtin_memcpy(p, &words, sizeof words);
}

/// The first n < kLanes elements; zeros behind them.
MICA_INLINE F32 load_part(const float* p, std::int64_t n) { return load_first(p, n, 0); }
MICA_INLINE void store_part(float* p, F32 v, std::int64_t n) { store_first(p, v, n); }
template <class T>
MICA_INLINE F32 load_part(const T* p, std::int64_t n) {
  return from_words(load_first(reinterpret_cast<const std::uint16_t*>(p), n), T{});
}
template <class T>
MICA_INLINE void store_part(T* p, F32 v, std::int64_t n) {
  store_first(reinterpret_cast<std::uint16_t*>(p), to_words(v, T{}), n);
}

/// How many of a vector's lanes are wanted: all of them, or the first n. Loads and stores overloaded on it let a loop
/// body be written once for its whole vectors and its last one, which gives every element the same operations.
struct Whole {};
struct Part {
  std::int64_t n;
};
template <class T>
MICA_INLINE F32 load(const T* p, Whole) {
  return load(p);
}
template <class T>
MICA_INLINE F32 load(const T* p, Part part) {
  return load_part(p, part.n);
}
template <class T>
MICA_INLINE void store(T* p, F32 v, Whole) {
  store(p, v);
}
template <class T>
MICA_INLINE void store(T* p, F32 v, Part part) {
  store_part(p, v, part.n);
}
MICA_INLINE F32 keep(F32 x, Whole, F32) { return x; }
MICA_INLINE F32 keep(F32 x, Part part, F32 other) { return keep_first(x, part.n, other); }

/// body(i, lanes) for every vector of [begin, end).
template <class Body>
MICA_INLINE void for_vectors(std::int64_t begin, std::int64_t end, Body body) {
  std::int64_t i = begin;
  for (; i + kLanes <= end; i += kLanes) body(i, Whole{});
  if (i < end) body(i, Part{end - i});
}

template <class T>
MICA_INLINE T* typed(void* p, T) {
  return static_cast<T*>(p);
}
template <class T>
MICA_INLINE const T* typed(const void* p, T) {
  return static_cast<const T*>(p);
}

/// f(T{}) with the element type of a dtype: float, Bf16 or F16. Callers have checked the dtype.
template <class F>
MICA_INLINE auto with_type(DType dtype, F f) {
  switch (dtype) {
    case DType::f32:
      return f(float{});
    case DType::bf16:
      return f(Bf16{});
    case DType::f16:
      return f(F16{});
    default:
      __builtin_trap();
  }
}

}  // namespace
}  // namespace mica::cpu::MICA_ISA
