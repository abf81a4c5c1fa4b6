// SPDX-License-Identifier: Apache-2.0
#include "../../moment_rounding.hpp"
#include "install.hpp"
#include "moments.hpp"

namespace mica::cpu::MICA_ISA {
namespace {

template <class Moment, class Square>
MICA_INLINE void adamw_loop(const AdamWCoefficients& c, std::uint32_t step, float* param, const float* grad, Moment* exp_avg,
                            Square* exp_avg_sq, std::int64_t begin, std::int64_t end) {
  for_vectors(begin, end, [=](std::int64_t i, auto lanes) MICA_INLINE_LAMBDA {
    const F32 g = load(grad + i, lanes), before = load(param + i, lanes);
    F32 p = before, m = load_state(exp_avg + i, lanes), v = load_state(exp_avg_sq + i, lanes);
    adamw_update<VectorMath>(c, g, p, m, v);
    store(param + i, p, lanes);
    const auto noise = [=]() MICA_INLINE_LAMBDA { return moment_noise<VectorMath>(g, before, step); };
    store_moment(
        exp_avg + i, m, [=]() MICA_INLINE_LAMBDA { return noise() & 0xffffU; }, lanes);
    store_moment(
        exp_avg_sq + i, v, [=]() MICA_INLINE_LAMBDA { return noise() >> 16; }, lanes);
  });
}

void adamw(const AdamWCoefficients& c, MomentFormat format, float* param, const float* grad, void* exp_avg, void* exp_avg_sq,
           std::int64_t begin, std::int64_t end) {
  if (format.dtype == DType::f32) {
    adamw_loop(c, format.step, param, grad, typed(exp_avg, float{}), typed(exp_avg_sq, float{}), begin, end);
  } else if (format.dtype == DType::bf16) {
    adamw_loop(c, format.step, param, grad, typed(exp_avg, Bf16{}), typed(exp_avg_sq, Bf16{}), begin, end);
  } else {
    adamw_loop(c, format.step, param, grad, typed(exp_avg, Moment8{}), typed(exp_avg_sq, Square8{}), begin, end);
  }
}

template <class Moment>
MICA_INLINE void sgd_loop(const SgdCoefficients& c, std::uint32_t step, float* param, const float* grad, Moment* momentum,
                          std::int64_t begin, std::int64_t end) {
  for_vectors(begin, end, [=](std::int64_t i, auto lanes) MICA_INLINE_LAMBDA {
    const F32 g = load(grad + i, lanes), before = load(param + i, lanes);
    F32 p = before, buffer = load_state(momentum + i, lanes);
    sgd_update(c, g, p, buffer);
    store_moment(
        momentum + i, buffer, [=]() MICA_INLINE_LAMBDA { return moment_noise<VectorMath>(g, before, step) & 0xffffU; }, lanes);
    store(param + i, p, lanes);
  });
}

void sgd(const SgdCoefficients& c, MomentFormat format, float* param, const float* grad, void* momentum, std::int64_t begin,
         std::int64_t end) {
  if (c.momentum == 0) {
    for_vectors(begin, end, [=](std::int64_t i, auto lanes) MICA_INLINE_LAMBDA {
      F32 p = load(param + i, lanes);
      sgd_update(c, load(grad + i, lanes), p);
      store(param + i, p, lanes);
    });
  } else if (format.dtype == DType::f32) {
    sgd_loop(c, format.step, param, grad, typed(momentum, float{}), begin, end);
  } else if (format.dtype == DType::bf16) {
    sgd_loop(c, format.step, param, grad, typed(momentum, Bf16{}), begin, end);
  } else {
    sgd_loop(c, format.step, param, grad, typed(momentum, Moment8{}), begin, end);
  }
}

}  // namespace

void install_optimizer(Loops& table) {
  table.adamw = adamw;
  table.sgd = sgd;
}

}  // namespace mica::cpu::MICA_ISA
