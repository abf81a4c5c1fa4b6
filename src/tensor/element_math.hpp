// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "mica/core/host_device.hpp"
#include "mica/tensor/kernels.hpp"

// The formulas of elementwise layers, written once for scalars, vectors and devices. `Math` is ScalarMath or VectorMath
// (cpu/isa/math.hpp). Fused multiply-adds are written out: including files are compiled without contraction, so that an
// element's bits do not depend on which loop computes it.
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

// tanh(x) = (1 - e) / (1 + e) with e = e^(-2x); near 0, where that cancels, x + x^3 p(x^2) with the minimax p of Cephes.
template <class Math, class Float = typename Math::Float>
[[gnu::always_inline]] MICA_HOST_DEVICE inline Float tanh(Float x) {
  const Float z = x * x;
  Float p = Math::fma(z, Float{} - 5.70498872745e-3F, Float{} + 2.06390887954e-2F);
  p = Math::fma(p, z, Float{} - 5.37397155531e-2F);
  p = Math::fma(p, z, Float{} + 1.33314422036e-1F);
  p = Math::fma(p, z, Float{} - 3.33332819422e-1F);
  const Float small = Math::fma(p * z, x, x);
  // Beyond 10 the result is within 1e-8 of 1; the bound keeps e finite.
  const Float e = Math::exp(-2.0F * Math::at_most(10.0F, Math::at_least(-10.0F, x)));
  const Float large = (1.0F - e) / (1.0F + e);
  return z < 0.390625F ? small : large;
}

template <class Math, class Float = typename Math::Float>
[[gnu::always_inline]] MICA_HOST_DEVICE inline Float tanh_derivative(Float x) {
  // 1 - tanh(x)^2 = 4 e / (1 + e)^2 without cancellation. Beyond 40 it is below 1e-34; the bound keeps e finite.
  const Float e = Math::exp(-2.0F * Math::at_most(40.0F, Math::at_least(-40.0F, x)));
  const Float s = 1.0F / (e + 1.0F);
  return 4.0F * (e * s) * s;
}

template <Activation kF, class Math, class Float = typename Math::Float>
[[gnu::always_inline]] MICA_HOST_DEVICE inline Float activation(Float x) {
  if constexpr (kF == Activation::gelu) return gelu<Math>(x);
  if constexpr (kF == Activation::relu) return Math::at_least(0.0F, x);
  if constexpr (kF == Activation::silu) return silu<Math>(x);
  if constexpr (kF == Activation::tanh) return tanh<Math>(x);
}

/// dy times the derivative at x. For a ReLU, 0 where x <= 0, even if dy is infinite or NaN.
template <Activation kF, class Math, class Float = typename Math::Float>
[[gnu::always_inline]] MICA_HOST_DEVICE inline Float activation_gradient(Float x, Float dy) {
  if constexpr (kF == Activation::gelu) return dy * gelu_derivative<Math>(x);
  if constexpr (kF == Activation::relu) return x <= 0.0F ? Float{} : dy;
  if constexpr (kF == Activation::silu) return dy * silu_with_slope<Math>(x).slope;
  if constexpr (kF == Activation::tanh) return dy * tanh_derivative<Math>(x);
}

/// An activation as a type: with_activation(f, body) calls body(Chosen<f>{}).
template <Activation kF>
struct Chosen {
  static constexpr Activation value = kF;
};
template <class Body>
[[gnu::always_inline]] inline void with_activation(Activation f, const Body& body) {
  switch (f) {
    case Activation::gelu:
      return body(Chosen<Activation::gelu>{});
    case Activation::relu:
      return body(Chosen<Activation::relu>{});
    case Activation::silu:
      return body(Chosen<Activation::silu>{});
    case Activation::tanh:
      return body(Chosen<Activation::tanh>{});
  }
}

/// The pair (a, b) rotated by the angle whose cosine and sine are given.
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
