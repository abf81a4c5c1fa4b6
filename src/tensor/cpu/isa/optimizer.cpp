// SPDX-License-Identifier: Apache-2.0
#include "elements.hpp"
#include "install.hpp"
#include "math.hpp"

namespace mica::cpu::MICA_ISA {
namespace {

void adamw(const AdamWCoefficients& c, float* param, const float* grad, float* exp_avg, float* exp_avg_sq, std::int64_t begin,
           std::int64_t end) {
  for_vectors(begin, end, [=](std::int64_t i, auto lanes) MICA_INLINE_LAMBDA {
    F32 p = load(param + i, lanes), m = load(exp_avg + i, lanes), v = load(exp_avg_sq + i, lanes);
    adamw_update<VectorMath>(c, load(grad + i, lanes), p, m, v);
    store(param + i, p, lanes);
    store(exp_avg + i, m, lanes);
    store(exp_avg_sq + i, v, lanes);
  });
}

template <bool kMomentum>
MICA_INLINE void sgd_loop(const SgdCoefficients& c, float* param, const float* grad, float* momentum, std::int64_t begin,
                          std::int64_t end) {
  for_vectors(begin, end, [=](std::int64_t i, auto lanes) MICA_INLINE_LAMBDA {
    F32 p = load(param + i, lanes);
    if constexpr (kMomentum) {
      F32 buffer = load(momentum + i, lanes);
      sgd_update(c, load(grad + i, lanes), p, buffer);
      store(momentum + i, buffer, lanes);
    } else {
      sgd_update(c, load(grad + i, lanes), p);
    }
    store(param + i, p, lanes);
  });
}

void sgd(const SgdCoefficients& c, float* param, const float* grad, float* momentum, std::int64_t begin, std::int64_t end) {
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
