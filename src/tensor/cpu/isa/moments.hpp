// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../../moment_codes.hpp"
#include "elements.hpp"
#include "math.hpp"

// Elements of an optimizer's state as vectors of f32: those of elements.hpp, and 8-bit codes.
namespace mica::cpu::MICA_ISA {
namespace {

using U8 = std::uint8_t __attribute__((vector_size(kLanes)));

struct Moment8 {
  using Code = Moment8Code;
  std::uint8_t code;
};
struct Square8 {
  using Code = Square8Code;
  std::uint8_t code;
};

MICA_INLINE U8 load_codes(const void* p, Whole) {
  U8 v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
MICA_INLINE U8 load_codes(const void* p, Part part) {
  U8 v{};
  for (int l = 0; l < kLanes - 1; ++l) {
    if (l < part.n) v[l] = static_cast<const std::uint8_t*>(p)[l];
  }
  return v;
}
MICA_INLINE void store_codes(void* p, U32 codes, Whole) {
  const U8 v = __builtin_convertvector(codes, U8);
  __builtin_memcpy(p, &v, sizeof v);
}
MICA_INLINE void store_codes(void* p, U32 codes, Part part) {
  for (int l = 0; l < kLanes - 1; ++l) {
    if (l < part.n) static_cast<std::uint8_t*>(p)[l] = static_cast<std::uint8_t>(codes[l]);
  }
}

template <class T, class Lanes, class Code = typename T::Code>
MICA_INLINE F32 load_state(const T* p, Lanes lanes) {
  return moment_value<Code, VectorMath>(__builtin_convertvector(load_codes(p, lanes), U32));
}
template <class Lanes>
MICA_INLINE F32 load_state(const float* p, Lanes lanes) {
  return load(p, lanes);
}
template <class Lanes>
MICA_INLINE F32 load_state(const Bf16* p, Lanes lanes) {
  return load(p, lanes);
}
template <class Lanes>
MICA_INLINE F32 load_state(const F16* p, Lanes lanes) {
  return load(p, lanes);
}

/// To nearest.
template <class T, class Lanes, class Code = typename T::Code>
MICA_INLINE void store_state(T* p, F32 v, Lanes lanes) {
  store_codes(p, nearest_moment_code<Code, VectorMath>(v), lanes);
}
template <class Lanes>
MICA_INLINE void store_state(float* p, F32 v, Lanes lanes) {
  store(p, v, lanes);
}
template <class Lanes>
MICA_INLINE void store_state(Bf16* p, F32 v, Lanes lanes) {
  store(p, v, lanes);
}
template <class Lanes>
MICA_INLINE void store_state(F16* p, F32 v, Lanes lanes) {
  store(p, v, lanes);
}

/// At random; fp32 as it is. @param noise  gives 16 random bits a lane, where they are needed
template <class T, class Noise, class Lanes, class Code = typename T::Code>
MICA_INLINE void store_moment(T* p, F32 v, Noise noise, Lanes lanes) {
  store_codes(p, moment_code<Code, VectorMath>(v, code_noise<Code>(noise())), lanes);
}
template <class Noise, class Lanes>
MICA_INLINE void store_moment(float* p, F32 v, Noise, Lanes lanes) {
  store(p, v, lanes);
}
template <class Noise>
MICA_INLINE void store_moment(Bf16* p, F32 v, Noise noise, Whole) {
  const U16 words = to_words_at_random(v, noise(), Bf16{});
  __builtin_memcpy(p, &words, sizeof words);
}
template <class Noise>
MICA_INLINE void store_moment(Bf16* p, F32 v, Noise noise, Part part) {
  store_first(reinterpret_cast<std::uint16_t*>(p), to_words_at_random(v, noise(), Bf16{}), part.n);
}

/// with_type() for whatever is stored: 8-bit codes, too.
template <class F>
MICA_INLINE auto with_stored_type(DType dtype, F f) {
  if (dtype == DType::moment8) return f(Moment8{});
  if (dtype == DType::square8) return f(Square8{});
  return with_type(dtype, f);
}

}  // namespace
}  // namespace mica::cpu::MICA_ISA
