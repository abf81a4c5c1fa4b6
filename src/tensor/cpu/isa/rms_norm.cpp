// SPDX-License-Identifier: Apache-2.0
#include "install.hpp"
#include "norm_backward.hpp"

namespace mica::cpu::MICA_ISA {
namespace {

template <class Type>
MICA_INLINE void forward_row(const Type* x, const Type* gamma, float eps, std::int64_t cols, Type* y, float* rstd_out) {
  const float squares = row_sum<4>(cols, [=](std::int64_t i, auto lanes) MICA_INLINE_LAMBDA {
    const F32 v = load(x + i, lanes);
    return v * v;
  });
  const float rstd = 1.0F / __builtin_sqrtf(squares / static_cast<float>(cols) + eps);
  for_vectors(0, cols, [=](std::int64_t i, auto lanes) { store(y + i, load(x + i, lanes) * rstd * load(gamma + i, lanes), lanes); });
  if (rstd_out) *rstd_out = rstd;
}

void rms_norm(DType dtype, const void* x, const void* gamma, double eps, std::int64_t cols, void* y, float* rstd, std::int64_t begin,
              std::int64_t end) {
  with_type(dtype, [=](auto type) {
    for (std::int64_t row = begin; row < end; ++row) {
      forward_row(typed(x, type) + row * cols, typed(gamma, type), static_cast<float>(eps), cols, typed(y, type) + row * cols,
                  rstd ? rstd + row : nullptr);
    }
  });
}

void rms_norm_backward(DType dtype, const void* dy, const void* x, const void* gamma, const float* rstd, std::int64_t cols, void* dx,
                       Write dx_mode, float* dgamma, std::int64_t begin, std::int64_t end) {
  norm_backward<false>(dtype, dy, x, gamma, nullptr, rstd, cols, dx, dx_mode, dgamma, nullptr, begin, end);
}

}  // namespace

void install_rms_norm(Loops& table) {
  table.rms_norm = rms_norm;
  table.rms_norm_backward = rms_norm_backward;
}

}  // namespace mica::cpu::MICA_ISA
