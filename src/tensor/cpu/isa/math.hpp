// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../../element_math.hpp"
#include "vec.hpp"

namespace mica::cpu::MICA_ISA {
namespace {

/// e^x, error below 1.1 units in the last place, subnormal results included; 0 and infinity beyond them, NaN for NaN.
/// x = n log(2) + r with |r| <= log(2)/2; the polynomial is the minimax one for (e^r - 1 - r) / r^2 (error 3e-9).
MICA_INLINE F32 exp(F32 x) {
  x = min_or_second(splat(89.0F), max_or_second(splat(-104.0F), x));
  // Rounds to an integer: a float of the size of 1.5 * 2^23 has no fraction bits.
  const F32 n = fma(x, splat(1.44269504F), splat(0x1.8p23F)) - 0x1.8p23F;
  F32 r = fma(n, splat(-0x1.62e4p-1F), x);  // log(2) in two parts; this product is exact without fma as well
  r = fma(n, splat(-1.4286068e-6F), r);
  F32 q = fma(r, splat(1.3814613e-3F), splat(8.3687098e-3F));
  q = fma(q, r, splat(4.1668387e-2F));
  q = fma(q, r, splat(1.6666521e-1F));
  q = fma(q, r, splat(4.9999993e-1F));
  return scale_by_power(fma(q, r * r, r) + 1.0F, n);
}

/// A vector at a time: see scalar_math.hpp.
struct VectorMath {
  using Float = F32;
  using Word = U32;
  MICA_INLINE static Float exp(Float x) { return MICA_ISA::exp(x); }
  MICA_INLINE static Float sqrt(Float x) { return MICA_ISA::sqrt(x); }
  MICA_INLINE static Float fma(Float a, Float b, Float c) { return MICA_ISA::fma(a, b, c); }
  MICA_INLINE static Float at_least(float low, Float x) { return max_or_second(splat(low), x); }
  MICA_INLINE static Float at_most(float high, Float x) { return min_or_second(splat(high), x); }
  MICA_INLINE static Float to_float(Word w) { return from_int(reinterpret_cast<I32>(w)); }
  MICA_INLINE static Word bits(Float x) { return MICA_ISA::bits(x); }
  MICA_INLINE static Float from_bits(Word w) { return MICA_ISA::from_bits(w); }
};

}  // namespace
}  // namespace mica::cpu::MICA_ISA
