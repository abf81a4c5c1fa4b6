#include "install.hpp"
#include "row_sum.hpp"

namespace mica::cpu::MICA_ISA {
namespace {

template <class Type>
MICA_INLINE void forward_row(const Type* x, const Type* gamma, float eps, std::int64_t cols, Type* y, float* rstd_out) {
  const float squares = row_sum<4>(cols, [=](std::int64_t i, auto lanes) MICA_INLINE_LAMBDA {
    const F32 v = load(x + i, lanes);
    return v * v;
  });
  const float rstd = 1.0F / __builtin_sqrtf(squares / static_cast<float>(cols) + eps);
  for_vectors(0, cols, [=](std::int64_t i, auto lanes) {
    store(y + i, load(x + i, lanes) * rstd * load(gamma + i, lanes), lanes);
  });
  if (rstd_out) *rstd_out = rstd;
}

void rms_norm(DType dtype, const void* x, const void* gamma, double eps, std::int64_t cols, void* y, float* rstd,
              std::int64_t begin, std::int64_t end) {
  with_type(dtype, [=](auto type) {
    for (std::int64_t row = begin; row < end; ++row) {
      forward_row(typed(x, type) + row * cols, typed(gamma, type), static_cast<float>(eps), cols,
                  typed(y, type) + row * cols, rstd ? rstd + row : nullptr);
    }
  });
}

/// What backward wants of a call: template arguments, so that the loops have no branches.
enum class InputGradient { none, overwrite, accumulate };

/// The operands of a backward pass over some rows, beginning with the first of them.
template <class Type>
struct BackwardRows {
  const Type* dy;
  const Type* x;
  const Type* gamma;
  const float* rstd;
  std::int64_t cols;
  Type* dx;
  float* dgamma;  // null: not wanted
};

/// With g = gamma dy and n the normalised x: the row's mean of g n.
template <class Type>
MICA_INLINE float mean_gn(const BackwardRows<Type>& rows, std::int64_t r) {
  const Type *dy = rows.dy + r * rows.cols, *x = rows.x + r * rows.cols, *dx = rows.dx + r * rows.cols;
  F32 sum[2] = {};
  const auto add = [&](std::int64_t i, auto lanes, int v) MICA_INLINE_LAMBDA {
    __builtin_prefetch(dx + i, 1);  // the only operand that this pass would leave in memory
    sum[v] = fma(load(dy + i, lanes) * load(rows.gamma + i, lanes), load(x + i, lanes), sum[v]);
  };
  std::int64_t i = 0;
  for (; i + 2 * kLanes <= rows.cols; i += 2 * kLanes) {
    add(i, Whole{}, 0);
    add(i + kLanes, Whole{}, 1);
  }
  for_vectors(i, rows.cols, [&](std::int64_t j, auto lanes) MICA_INLINE_LAMBDA { add(j, lanes, 0); });
  return sum_lanes(sum[0] + sum[1]) / static_cast<float>(rows.cols) * rows.rstd[r];
}

/// dx = rstd (g - n mean(g n)); dgamma += dy n. Several rows at once, so that dgamma is loaded and stored less often.
template <int kRows, InputGradient kInput, bool kParam, class Type>
MICA_INLINE void backward_rows(const BackwardRows<Type>& rows) {
  float means[kRows] = {};
  if constexpr (kInput != InputGradient::none) {
    for (int r = 0; r < kRows; ++r) means[r] = mean_gn(rows, r);
  }
  for_vectors(0, rows.cols, [&](std::int64_t i, auto lanes) MICA_INLINE_LAMBDA {
    F32 sum{};
    for (int r = 0; r < kRows; ++r) {
      const std::int64_t at = r * rows.cols + i;
      const F32 dy = load(rows.dy + at, lanes);
      const F32 n = load(rows.x + at, lanes) * rows.rstd[r];
      if constexpr (kParam) sum = fma(dy, n, sum);
      if constexpr (kInput != InputGradient::none) {
        const F32 rest = fma(n, splat(-means[r]), dy * load(rows.gamma + i, lanes));
        const F32 old = kInput == InputGradient::accumulate ? load(rows.dx + at, lanes) : F32{};
        store(rows.dx + at, fma(rest, splat(rows.rstd[r]), old), lanes);
      }
    }
    if constexpr (kParam) store(rows.dgamma + i, load(rows.dgamma + i, lanes) + sum, lanes);
  });
}

template <InputGradient kInput, bool kParam, class Type>
void backward(BackwardRows<Type> rows, std::int64_t num_rows) {
  constexpr int kRows = 4;
  const auto advance = [&](int by) {
    rows.dy += by * rows.cols, rows.x += by * rows.cols, rows.rstd += by;
    if (kInput != InputGradient::none) rows.dx += by * rows.cols;
  };
  for (; num_rows >= kRows; num_rows -= kRows, advance(kRows)) backward_rows<kRows, kInput, kParam>(rows);
  for (; num_rows > 0; --num_rows, advance(1)) backward_rows<1, kInput, kParam>(rows);
}

template <InputGradient kInput, class Type>
void backward(const BackwardRows<Type>& rows, std::int64_t num_rows) {
  if (rows.dgamma) {
    backward<kInput, true>(rows, num_rows);
  } else {
    backward<kInput, false>(rows, num_rows);
  }
}

void rms_norm_backward(DType dtype, const void* dy, const void* x, const void* gamma, const float* rstd,
                       std::int64_t cols, void* dx, Write dx_mode, float* dgamma, std::int64_t begin,
                       std::int64_t end) {
  with_type(dtype, [=](auto type) {
    using Type = decltype(type);
    BackwardRows<Type> rows{typed(dy, type) + begin * cols,
                            typed(x, type) + begin * cols,
                            typed(gamma, type),
                            rstd + begin,
                            cols,
                            nullptr,
                            dgamma};
    if (dx == nullptr) return backward<InputGradient::none>(rows, end - begin);
    rows.dx = typed(dx, type) + begin * cols;
    if (dx_mode == Write::overwrite) return backward<InputGradient::overwrite>(rows, end - begin);
    return backward<InputGradient::accumulate>(rows, end - begin);
  });
}

}  // namespace

void install_rms_norm(Loops& table) {
  table.rms_norm = rms_norm;
  table.rms_norm_backward = rms_norm_backward;
}

}  // namespace mica::cpu::MICA_ISA
