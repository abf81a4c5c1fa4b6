// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

/// Vectors of one machine register, whichever ISA this file is compiled for. [Note: isa code]
/// Everything under cpu/isa is compiled several times with different -march. A function with external linkage that is
/// inline or a template would be emitted by each of them under one name, and the linker would keep an arbitrary one: AVX-512
/// code could run on a processor without it. So all code here is in mica::cpu::<isa>::(anonymous), no function of std:: is
/// used, and the only symbols are the install_*() of each file (a unit test checks that). A function may have a target attribute
/// for more than its -march: its table is then installed only after asking the processor, and the system for AMX (pair_tiles.cpp).
/// Contraction to fused multiply-adds is off; fma() below requests one.

#define MICA_INLINE [[gnu::always_inline]] inline
/// For a lambda that must not become a call: [](...) MICA_INLINE_LAMBDA { ... }
#define MICA_INLINE_LAMBDA __attribute__((always_inline))

#include "shuffle.hpp"

#if defined(__AVX512F__)
#include "vec_avx512.hpp"
#elif defined(__AVX2__)
#include "vec_avx2.hpp"
#else
#include "vec_generic.hpp"
#endif

namespace mica::cpu::MICA_ISA {
namespace {

MICA_INLINE F32 splat(float x) { return F32{} + x; }
MICA_INLINE U32 bits(F32 x) { return reinterpret_cast<U32>(x); }
MICA_INLINE F32 from_bits(U32 x) { return reinterpret_cast<F32>(x); }
MICA_INLINE F32 from_int(I32 x) { return __builtin_convertvector(x, F32); }

/// 0, 1, 2, ...
MICA_INLINE I32 lane_numbers() {
  I32 v{};
  for (int l = 0; l < kLanes; ++l) v[l] = l;
  return v;
}
/// x in the first n lanes, `other` behind them.
MICA_INLINE F32 keep_first(F32 x, std::int64_t n, F32 other) { return lane_numbers() < static_cast<std::int32_t>(n) ? x : other; }

/// Lane l becomes lane (l + kShift) mod kLanes.
template <int kShift, int... kLane>
MICA_INLINE F32 rotate(F32 v, std::integer_sequence<int, kLane...> /*lanes*/) {
  return shuffle<((kLane + kShift) % kLanes)...>(v, v);
}
template <int kShift>
MICA_INLINE F32 rotate(F32 v) {
  return rotate<kShift>(v, std::make_integer_sequence<int, kLanes>());
}
/// All lanes combined in a fixed tree, so that a row's sum does not depend on its position.
template <class Combine>
MICA_INLINE float combine_lanes(F32 v, Combine combine) {
  if constexpr (kLanes > 8) v = combine(v, rotate<8>(v));
  if constexpr (kLanes > 4) v = combine(v, rotate<4>(v));
  v = combine(v, rotate<2>(v));
  return combine(v, rotate<1>(v))[0];
}
MICA_INLINE float sum_lanes(F32 v) {
  return combine_lanes(v, [](F32 a, F32 b) MICA_INLINE_LAMBDA { return a + b; });
}
MICA_INLINE float max_lanes(F32 v) {
  return combine_lanes(v, [](F32 a, F32 b) MICA_INLINE_LAMBDA { return max_or_second(a, b); });
}
MICA_INLINE double sum_lanes(F64 v) {
  double sum = 0;
  for (int l = 0; l < kLanes / 2; ++l) sum += v[l];
  return sum;
}
/// The larger one, NaN if either is.
MICA_INLINE F32 max_or_nan(F32 a, F32 b) { return (a > b) | (a != a) ? a : b; }
MICA_INLINE float max_or_nan(float a, float b) { return a > b || a != a ? a : b; }

}  // namespace
}  // namespace mica::cpu::MICA_ISA
