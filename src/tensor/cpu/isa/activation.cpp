#include "elements.hpp"
#include "install.hpp"
#include "math.hpp"

namespace mica::cpu::MICA_ISA {
namespace {

// gelu(x) = x/2 (1 + tanh(u)) with u = sqrt(2/pi) (x + 0.044715 x^3), and (1 + tanh(u)) / 2 = 1 / (1 + e^(-2u)): one
// exponential and one division, without the cancellation that 1 + tanh suffers for negative x.
constexpr float kTwoSlope = 1.5957691216F;  // 2 sqrt(2/pi)
constexpr float kTwoCubic = 1.5957691216F * 0.044715F;

MICA_INLINE F32 minus_two_u(F32 x) { return -x * fma(x * x, splat(kTwoCubic), splat(kTwoSlope)); }

MICA_INLINE F32 gelu_at(F32 x) { return x / (exp(minus_two_u(x)) + 1.0F); }

MICA_INLINE F32 gelu_derivative_at(F32 x) {
  // Beyond 9.8 the derivative is within 1e-33 of 0 or 1; the bound keeps e finite.
  x = min_or_second(splat(9.8F), max_or_second(splat(-9.8F), x));
  const F32 e = exp(minus_two_u(x));
  const F32 s = 1.0F / (e + 1.0F);
  const F32 two_u_slope = fma(x * x, splat(3 * kTwoCubic), splat(kTwoSlope));
  // d/dx (x s) = s + x s (1 - s) 2u', and 1 - s = e s without cancellation.
  return fma(x * s * (e * s), two_u_slope, s);
}

void gelu(DType dtype, const void* x, void* y, std::int64_t begin, std::int64_t end) {
  with_type(dtype, [=](auto type) {
    const auto* from = typed(x, type);
    auto* to = typed(y, type);
    for_vectors(begin, end, [=](std::int64_t i, auto lanes) { store(to + i, gelu_at(load(from + i, lanes)), lanes); });
  });
}

void gelu_backward(DType dtype, const void* x, const void* dy, void* dx, std::int64_t begin, std::int64_t end) {
  with_type(dtype, [=](auto type) {
    const auto *px = typed(x, type), *pdy = typed(dy, type);
    auto* to = typed(dx, type);
    for_vectors(begin, end, [=](std::int64_t i, auto lanes) {
      store(to + i, load(pdy + i, lanes) * gelu_derivative_at(load(px + i, lanes)), lanes);
    });
  });
}

// silu(x) = x s with s = 1 / (1 + e^-x).
MICA_INLINE F32 silu_at(F32 x) { return x / (exp(-x) + 1.0F); }

void swiglu(DType dtype, const void* gate, const void* up, void* y, std::int64_t begin, std::int64_t end) {
  with_type(dtype, [=](auto type) {
    const auto *pg = typed(gate, type), *pu = typed(up, type);
    auto* to = typed(y, type);
    for_vectors(begin, end, [=](std::int64_t i, auto lanes) {
      store(to + i, silu_at(load(pg + i, lanes)) * load(pu + i, lanes), lanes);
    });
  });
}

void swiglu_backward(DType dtype, const void* gate, const void* up, const void* dy, void* dgate, void* dup,
                     std::int64_t begin, std::int64_t end) {
  with_type(dtype, [=](auto type) {
    const auto *pg = typed(gate, type), *pu = typed(up, type), *pdy = typed(dy, type);
    auto *to_gate = typed(dgate, type), *to_up = typed(dup, type);
    for_vectors(begin, end, [=](std::int64_t i, auto lanes) {
      // Beyond -80 both are within 1e-33 of 0, beyond 80 of x and 1; the bounds keep e and x e finite.
      const F32 x = max_or_second(splat(-80.0F), load(pg + i, lanes));
      const F32 e = exp(-min_or_second(splat(80.0F), x));
      const F32 s = 1.0F / (e + 1.0F);
      const F32 silu = x * s;
      const F32 slope = fma(silu, e * s, s);  // s + x s (1 - s), and 1 - s = e s without cancellation
      const F32 u = load(pu + i, lanes), d = load(pdy + i, lanes);
      if (to_gate) store(to_gate + i, d * u * slope, lanes);
      if (to_up) store(to_up + i, d * silu, lanes);
    });
  });
}

}  // namespace

void install_activation(Loops& table) {
  table.gelu = gelu;
  table.gelu_backward = gelu_backward;
  table.swiglu = swiglu;
  table.swiglu_backward = swiglu_backward;
}

}  // namespace mica::cpu::MICA_ISA
