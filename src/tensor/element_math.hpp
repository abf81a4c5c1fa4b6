#pragma once

#include "mica/core/host_device.hpp"

// The formulas of elementwise layers, written once for scalars, vectors and devices. `Math` is ScalarMath or a vector's
// of cpu/isa/math.hpp. Fused multiply-adds are written where they are meant: including files are compiled without
// contraction, so that an element's bits do not depend on which loop reached it.
namespace mica::element {

// gelu(x) = x/2 (1 + tanh(u)) with u = sqrt(2/pi) (x + 0.044715 x^3), and (1 + tanh(u)) / 2 = 1 / (1 + e^(-2u)): one
// exponential and one division, without the cancellation that 1 + tanh suffers for negative x.
inline constexpr float kTwoSlope = 1.5957691216F;  // 2 sqrt(2/pi)
inline constexpr float kTwoCubic = 1.5957691216F * 0.044715F;

template <class Math, class Float = typename Math::Float>
[[gnu::always_inline]] MICA_HOST_DEVICE inline Float minus_two_u(Float x) {
  return -x * Math::fma(x * x, Float{} + kTwoCubic, Float{} + kTwoSlope);
}

template <class Math, class Float = typename Math::Float>
[[gnu::always_inline]] MICA_HOST_DEVICE inline Float gelu(Float x) {
  return x / (Math::exp(minus_two_u<Math>(x)) + 1.0F);
}

template <class Math, class Float = typename Math::Float>
[[gnu::always_inline]] MICA_HOST_DEVICE inline Float gelu_derivative(Float x) {
  // Beyond 9.8 the derivative is within 1e-33 of 0 or 1; the bound keeps e finite.
  x = Math::at_most(9.8F, Math::at_least(-9.8F, x));
  const Float e = Math::exp(minus_two_u<Math>(x));
  const Float s = 1.0F / (e + 1.0F);
  const Float two_u_slope = Math::fma(x * x, Float{} + 3 * kTwoCubic, Float{} + kTwoSlope);
  // d/dx (x s) = s + x s (1 - s) 2u', and 1 - s = e s without cancellation.
  return Math::fma(x * s * (e * s), two_u_slope, s);
}

/// x s with s = 1 / (1 + e^-x).
template <class Math, class Float = typename Math::Float>
[[gnu::always_inline]] MICA_HOST_DEVICE inline Float silu(Float x) {
  return x / (Math::exp(-x) + 1.0F);
}

/// silu(x) and its derivative.
template <class Float>
struct Silu {
  Float value, slope;
};
template <class Math, class Float = typename Math::Float>
[[gnu::always_inline]] MICA_HOST_DEVICE inline Silu<Float> silu_with_slope(Float x) {
  // Beyond -80 both are within 1e-33 of 0, beyond 80 of x and 1; the bounds keep e and x e finite.
  x = Math::at_least(-80.0F, x);
  const Float bounded = Math::at_most(80.0F, x);
  const Float e = Math::exp(-bounded);
  const Float s = 1.0F / (e + 1.0F);
  return {x * s, Math::fma(bounded * s, e * s, s)};  // s + x s (1 - s), and 1 - s = e s without cancellation
}

/// The pair (a, b) turned by the angle whose cosine and sine are given.
template <class Float>
struct Turned {
  Float a, b;
};
template <class Float>
[[gnu::always_inline]] MICA_HOST_DEVICE inline Turned<Float> turn(Float a, Float b, Float cos, Float sin) {
  return {a * cos - b * sin, b * cos + a * sin};
}

/// The larger one, NaN if either is: an overflow must not be lost in a maximum.
template <class Float>
[[gnu::always_inline]] MICA_HOST_DEVICE inline Float max_or_nan(Float a, Float b) {
  return a > b || a != a ? a : b;
}

}  // namespace mica::element
