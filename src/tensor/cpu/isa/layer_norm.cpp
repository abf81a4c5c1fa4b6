#include "install.hpp"
#include "row_sum.hpp"

namespace mica::cpu::MICA_ISA {
namespace {

template <class Type>
MICA_INLINE void forward_row(const Type* x, const Type* gamma, const Type* beta, float eps, std::int64_t cols, Type* y,
                             float* mean_out, float* rstd_out) {
  const float n = static_cast<float>(cols);
  const float mean = row_sum<4>(cols, [=](std::int64_t i, auto lanes) MICA_INLINE_LAMBDA { return load(x + i, lanes); }) / n;
  // What is left of the mean corrects its rounding (Chan, Golub and LeVeque's corrected two-pass algorithm).
  F32 rest{};
  const float squares = row_sum<4>(cols, [&](std::int64_t i, auto lanes) MICA_INLINE_LAMBDA {
    const F32 d = keep(load(x + i, lanes) - mean, lanes, F32{});
    rest += d;
    return d * d;
  }) / n;
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

void layer_norm(DType dtype, const void* x, const void* gamma, const void* beta, double eps, std::int64_t cols, void* y,
                float* mean, float* rstd, std::int64_t begin, std::int64_t end) {
  with_type(dtype, [=](auto type) {
    for (std::int64_t row = begin; row < end; ++row) {
      forward_row(typed(x, type) + row * cols, typed(gamma, type), typed(beta, type), static_cast<float>(eps), cols,
                  typed(y, type) + row * cols, mean ? mean + row : nullptr, rstd ? rstd + row : nullptr);
    }
  });
}

/// One row's own numbers.
struct RowStatistics {
  float mean;
  float rstd;
};

/// dx = rstd (g - mean(g) - normalised mean(g normalised)) with g = gamma dy.
template <class Type>
MICA_INLINE void backward_input_row(const Type* dy, const Type* x, const Type* gamma, RowStatistics row,
                                    std::int64_t cols, Type* dx, Write mode) {
  F32 sum_g[2] = {}, sum_gx[2] = {};
  const auto add = [&](std::int64_t i, auto lanes, int v) MICA_INLINE_LAMBDA {
    const F32 g = load(dy + i, lanes) * load(gamma + i, lanes);
    sum_g[v] += g;
    sum_gx[v] = fma(g, load(x + i, lanes) - row.mean, sum_gx[v]);
  };
  std::int64_t i = 0;
  for (; i + 2 * kLanes <= cols; i += 2 * kLanes) {
    add(i, Whole{}, 0);
    add(i + kLanes, Whole{}, 1);
  }
  for_vectors(i, cols, [&](std::int64_t j, auto lanes) MICA_INLINE_LAMBDA { add(j, lanes, 0); });
  const float n = static_cast<float>(cols);
  const float mean_g = sum_lanes(sum_g[0] + sum_g[1]) / n;
  const float mean_gx = sum_lanes(sum_gx[0] + sum_gx[1]) / n * row.rstd;
  const auto write = [=](std::int64_t j, auto lanes, F32 old) MICA_INLINE_LAMBDA {
    const F32 g = load(dy + j, lanes) * load(gamma + j, lanes);
    const F32 normalised = (load(x + j, lanes) - row.mean) * row.rstd;
    const F32 centred = fma(normalised, splat(-mean_gx), g - mean_g);
    store(dx + j, fma(centred, splat(row.rstd), old), lanes);
  };
  if (mode == Write::overwrite) {
    for_vectors(0, cols, [=](std::int64_t j, auto lanes) MICA_INLINE_LAMBDA { write(j, lanes, F32{}); });
  } else {
    for_vectors(0, cols, [=](std::int64_t j, auto lanes) MICA_INLINE_LAMBDA { write(j, lanes, load(dx + j, lanes)); });
  }
}

/// dgamma += dy * normalised, dbeta += dy, over kRows rows at once so that the sums are loaded and stored less often.
template <int kRows, class Type>
MICA_INLINE void backward_params_rows(const Type* dy, const Type* x, const float* mean, const float* rstd,
                                      std::int64_t cols, float* dgamma, float* dbeta) {
  for_vectors(0, cols, [=](std::int64_t i, auto lanes) MICA_INLINE_LAMBDA {
    F32 g{}, b{};
    for (int r = 0; r < kRows; ++r) {
      const F32 d = load(dy + r * cols + i, lanes);
      const F32 normalised = (load(x + r * cols + i, lanes) - mean[r]) * rstd[r];
      g = r == 0 ? d * normalised : fma(d, normalised, g);
      b = r == 0 ? d : b + d;
    }
    store(dgamma + i, load(dgamma + i, lanes) + g, lanes);
    store(dbeta + i, load(dbeta + i, lanes) + b, lanes);
  });
}

void layer_norm_backward(DType dtype, const void* dy, const void* x, const void* gamma, const float* mean,
                         const float* rstd, std::int64_t cols, void* dx, Write dx_mode, float* dgamma, float* dbeta,
                         std::int64_t begin, std::int64_t end) {
  constexpr int kRows = 4;
  with_type(dtype, [=](auto type) {
    const auto *pdy = typed(dy, type), *px = typed(x, type);
    std::int64_t row = begin;
    // Parameters first: dx may be dy.
    const auto input = [=](std::int64_t r) MICA_INLINE_LAMBDA {
      if (dx == nullptr) return;
      backward_input_row(pdy + r * cols, px + r * cols, typed(gamma, type), RowStatistics{mean[r], rstd[r]}, cols,
                         typed(dx, type) + r * cols, dx_mode);
    };
    for (; row + kRows <= end; row += kRows) {
      if (dgamma) {
        backward_params_rows<kRows>(pdy + row * cols, px + row * cols, mean + row, rstd + row, cols, dgamma, dbeta);
      }
      for (int r = 0; r < kRows; ++r) input(row + r);
    }
    for (; row < end; ++row) {
      if (dgamma) {
        backward_params_rows<1>(pdy + row * cols, px + row * cols, mean + row, rstd + row, cols, dgamma, dbeta);
      }
      input(row);
    }
  });
}

}  // namespace

void install_layer_norm(Loops& table) {
  table.layer_norm = layer_norm;
  table.layer_norm_backward = layer_norm_backward;
}

}  // namespace mica::cpu::MICA_ISA
