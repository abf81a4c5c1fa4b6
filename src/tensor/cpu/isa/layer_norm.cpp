#include "install.hpp"
#include "row_sum.hpp"

namespace mica::cpu::MICA_ISA {
namespace {

template <class Type>
MICA_INLINE void forward_row(const Type* x, const Type* gamma, const Type* beta, float eps, std::int64_t cols, Type* y,
                             float* mean_out, float* rstd_out) {
  const float n = static_cast<float>(cols);
  const float mean =
      row_sum<4>(cols, [=](std::int64_t i, auto lanes) MICA_INLINE_LAMBDA { return load(x + i, lanes); }) / n;
  // What is left of the mean corrects its rounding (Chan, Golub and LeVeque's corrected two-pass algorithm).
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

void layer_norm(DType dtype, const void* x, const void* gamma, const void* beta, double eps, std::int64_t cols, void* y,
                float* mean, float* rstd, std::int64_t begin, std::int64_t end) {
  with_type(dtype, [=](auto type) {
    for (std::int64_t row = begin; row < end; ++row) {
      forward_row(typed(x, type) + row * cols, typed(gamma, type), typed(beta, type), static_cast<float>(eps), cols,
                  typed(y, type) + row * cols, mean ? mean + row : nullptr, rstd ? rstd + row : nullptr);
    }
  });
}

/// What backward wants of a call: template arguments, so that the loops have no branches.
enum class InputGradient { none, overwrite, accumulate };

/// The operands of a backward pass over kRows rows, beginning with the first of them.
template <class Type>
struct BackwardRows {
  const Type* dy;
  const Type* x;
  const Type* gamma;
  const float* mean;
  const float* rstd;
  std::int64_t cols;
  Type* dx;
  float* dgamma;  // null: no parameters' gradients
  float* dbeta;
};

/// With g = gamma dy and n the normalised x: the row's means of g and of g n.
struct RowMeans {
  float g;
  float gn;
};
template <class Type>
MICA_INLINE RowMeans row_means(const BackwardRows<Type>& rows, std::int64_t r) {
  const Type *dy = rows.dy + r * rows.cols, *x = rows.x + r * rows.cols, *dx = rows.dx + r * rows.cols;
  F32 sum_g[2] = {}, sum_gx[2] = {};
  const auto add = [&](std::int64_t i, auto lanes, int v) MICA_INLINE_LAMBDA {
    __builtin_prefetch(dx + i, 1);  // the only operand that this pass would leave in memory
    const F32 g = load(dy + i, lanes) * load(rows.gamma + i, lanes);
    sum_g[v] += g;
    sum_gx[v] = fma(g, load(x + i, lanes) - rows.mean[r], sum_gx[v]);
  };
  std::int64_t i = 0;
  for (; i + 2 * kLanes <= rows.cols; i += 2 * kLanes) {
    add(i, Whole{}, 0);
    add(i + kLanes, Whole{}, 1);
  }
  for_vectors(i, rows.cols, [&](std::int64_t j, auto lanes) MICA_INLINE_LAMBDA { add(j, lanes, 0); });
  const float n = static_cast<float>(rows.cols);
  return {sum_lanes(sum_g[0] + sum_g[1]) / n, sum_lanes(sum_gx[0] + sum_gx[1]) / n * rows.rstd[r]};
}

/// dx = rstd (g - mean(g) - n mean(g n)); dgamma += dy n; dbeta += dy. Several rows at once, so that the parameters'
/// sums are loaded and stored less often.
template <int kRows, InputGradient kInput, bool kParams, class Type>
MICA_INLINE void backward_rows(const BackwardRows<Type>& rows) {
  RowMeans means[kRows] = {};
  if constexpr (kInput != InputGradient::none) {
    for (int r = 0; r < kRows; ++r) means[r] = row_means(rows, r);
  }
  for_vectors(0, rows.cols, [&](std::int64_t i, auto lanes) MICA_INLINE_LAMBDA {
    F32 sum_gamma{}, sum_beta{};
    for (int r = 0; r < kRows; ++r) {
      const std::int64_t at = r * rows.cols + i;
      const F32 dy = load(rows.dy + at, lanes);
      const F32 n = (load(rows.x + at, lanes) - rows.mean[r]) * rows.rstd[r];
      if constexpr (kParams) {
        sum_gamma = fma(dy, n, sum_gamma);
        sum_beta += dy;
      }
      if constexpr (kInput != InputGradient::none) {
        const F32 g = dy * load(rows.gamma + i, lanes);
        const F32 centred = fma(n, splat(-means[r].gn), g - means[r].g);
        const F32 old = kInput == InputGradient::accumulate ? load(rows.dx + at, lanes) : F32{};
        store(rows.dx + at, fma(centred, splat(rows.rstd[r]), old), lanes);
      }
    }
    if constexpr (kParams) {
      store(rows.dgamma + i, load(rows.dgamma + i, lanes) + sum_gamma, lanes);
      store(rows.dbeta + i, load(rows.dbeta + i, lanes) + sum_beta, lanes);
    }
  });
}

template <InputGradient kInput, bool kParams, class Type>
void backward(BackwardRows<Type> rows, std::int64_t num_rows) {
  constexpr int kRows = 4;
  const auto advance = [&](int by) {
    rows.dy += by * rows.cols, rows.x += by * rows.cols, rows.mean += by, rows.rstd += by;
    if (kInput != InputGradient::none) rows.dx += by * rows.cols;
  };
  for (; num_rows >= kRows; num_rows -= kRows, advance(kRows)) backward_rows<kRows, kInput, kParams>(rows);
  for (; num_rows > 0; --num_rows, advance(1)) backward_rows<1, kInput, kParams>(rows);
}

template <InputGradient kInput, class Type>
void backward(const BackwardRows<Type>& rows, std::int64_t num_rows) {
  if (rows.dgamma) {
    backward<kInput, true>(rows, num_rows);
  } else {
    backward<kInput, false>(rows, num_rows);
  }
}

void layer_norm_backward(DType dtype, const void* dy, const void* x, const void* gamma, const float* mean,
                         const float* rstd, std::int64_t cols, void* dx, Write dx_mode, float* dgamma, float* dbeta,
                         std::int64_t begin, std::int64_t end) {
  with_type(dtype, [=](auto type) {
    using Type = decltype(type);
    BackwardRows<Type> rows{typed(dy, type) + begin * cols,
                            typed(x, type) + begin * cols,
                            typed(gamma, type),
                            mean + begin,
                            rstd + begin,
                            cols,
                            nullptr,
                            dgamma,
                            dbeta};
    if (dx == nullptr) return backward<InputGradient::none>(rows, end - begin);
    rows.dx = typed(dx, type) + begin * cols;
    if (dx_mode == Write::overwrite) return backward<InputGradient::overwrite>(rows, end - begin);
    return backward<InputGradient::accumulate>(rows, end - begin);
  });
}

}  // namespace

void install_layer_norm(Loops& table) {
  table.layer_norm = layer_norm;
  table.layer_norm_backward = layer_norm_backward;
}

}  // namespace mica::cpu::MICA_ISA
