// SPDX-License-Identifier: Apache-2.0
#include "install.hpp"
#include "norm_backward.hpp"

namespace mica::cpu::MICA_ISA {
namespace {

template <class Type>
MICA_INLINE void forward_row(const Type* x, const Type* gamma, const Type* beta, float eps, std::int64_t cols, Type* y, float* mean_out,
                             float* rstd_out) {
  const float n = static_cast<float>(cols);
  const float mean = row_sum<4>(cols, [=](std::int64_t i, auto lanes) MICA_INLINE_LAMBDA { return load(x + i, lanes); }) / n;
  // The sum of x - mean corrects the mean's rounding error (Chan, Golub and LeVeque's corrected two-pass algorithm).
  F32 rest{};
  const float squares = row_sum<4>(cols,
                                   [&](std::int64_t i, auto lanes) MICA_INLINE_LAMBDA {
                                     const F32 d = keep(load(x + i, lanes) - mean, lanes, F32{});
                                     rest += d;
                                     return d * d;
                                   }) /
                        n;
  const float residual = sum_lanes(rest) / n;
  const float variance = squares - residual * residual;
  const float rstd = 1.0F / __builtin_sqrtf((variance > 0 ? variance : (variance != variance ? variance : 0.0F)) + eps);
  for_vectors(0, cols, [=](std::int64_t i, auto lanes) {
    const F32 normalised = ((load(x + i, lanes) - mean) - residual) * rstd;
    store(y + i, fma(normalised, load(gamma + i, lanes), load(beta + i, lanes)), lanes);
  });
  if (mean_out) {
    *mean_out = mean + residual;
    *rstd_out = rstd;
  }
}

void layer_norm(DType dtype, const void* x, const void* gamma, const void* beta, double eps, std::int64_t cols, void* y, float* mean,
                float* rstd, std::int64_t begin, std::int64_t end) {
  with_type(dtype, [=](auto type) {
    for (std::int64_t row = begin; row < end; ++row) {
      forward_row(typed(x, type) + row * cols, typed(gamma, type), typed(beta, type), static_cast<float>(eps), cols,
                  typed(y, type) + row * cols, mean ? mean + row : nullptr, rstd ? rstd + row : nullptr);
    }
  });
}

}  // namespace

void install_layer_norm(Loops& table) {
  table.layer_norm = layer_norm;
  table.layer_norm_backward = norm_backward<true>;
}

}  // namespace mica::cpu::MICA_ISA
