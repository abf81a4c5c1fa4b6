#include "elements.hpp"
#include "install.hpp"

// Memory-bound: written without fused multiply-adds, so that every ISA gives the same parameters.
namespace mica::cpu::MICA_ISA {
namespace {

void adamw(const AdamWCoefficients& c, float* param, const float* grad, float* exp_avg, float* exp_avg_sq,
           std::int64_t begin, std::int64_t end) {
  for_vectors(begin, end, [=](std::int64_t i, auto lanes) MICA_INLINE_LAMBDA {
    const F32 g = load(grad + i, lanes) * c.grad_scale;
    F32 m = load(exp_avg + i, lanes);
    F32 v = load(exp_avg_sq + i, lanes);
    m = m + (g - m) * c.one_minus_beta1;
    v = v * c.beta2 + (g * g) * c.one_minus_beta2;
    const F32 denominator = sqrt(v) * c.inv_sqrt_bias2 + c.eps;
    const F32 p = load(param + i, lanes) * c.decay;
    store(param + i, p - (m / denominator) * c.step_size, lanes);
    store(exp_avg + i, m, lanes);
    store(exp_avg_sq + i, v, lanes);
  });
}

template <bool kMomentum>
MICA_INLINE void sgd_loop(const SgdCoefficients& c, float* param, const float* grad, float* momentum,
                          std::int64_t begin, std::int64_t end) {
  for_vectors(begin, end, [=](std::int64_t i, auto lanes) MICA_INLINE_LAMBDA {
    const F32 p = load(param + i, lanes);
    const F32 d = load(grad + i, lanes) * c.grad_scale + p * c.weight_decay;
    F32 update = d;
    if constexpr (kMomentum) {
      F32 buffer = d;
      if (!c.first_step) buffer = load(momentum + i, lanes) * c.momentum + d * c.one_minus_dampening;
      store(momentum + i, buffer, lanes);
      update = c.nesterov ? d + buffer * c.momentum : buffer;
    }
    store(param + i, p - update * c.lr, lanes);
  });
}

void sgd(const SgdCoefficients& c, float* param, const float* grad, float* momentum, std::int64_t begin,
         std::int64_t end) {
  if (c.momentum != 0) {
    sgd_loop<true>(c, param, grad, momentum, begin, end);
  } else {
    sgd_loop<false>(c, param, grad, momentum, begin, end);
  }
}

}  // namespace

void install_optimizer(Loops& table) {
  table.adamw = adamw;
  table.sgd = sgd;
}

}  // namespace mica::cpu::MICA_ISA
