// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

#include "mica/tensor/kernels.hpp"
#include "mica/tensor/philox.hpp"

#include "../optimizer_math.hpp"

namespace mica::cpu {

/// Instruction sets the loops are compiled for: x86-64-v2 (SSE4.2), v3 (AVX2, FMA), v4 (AVX-512). On other
/// processors only v2 exists and means "the compiler's baseline".
enum class Isa : std::uint8_t { v2, v3, v4 };

/// Max and sum of a softmax row: p[i] = exp(x[i] - max) / sum, log-sum-exp = max + log(sum).
struct RowSoftmax {
  float max = 0;
  float sum = 0;
};

/// Rows of x that thin_product() takes at a time.
inline constexpr std::int64_t kThinRows = 8;
/// Floats of a row of thin_row().
[[nodiscard]] constexpr std::int64_t thin_length(std::int64_t k) { return (k + 31) / 32 * 32; }

/// How an optimizer's moments are kept, and its step, which is part of how they are rounded ([Note: rounding of moments]).
struct MomentFormat {
  DType dtype = DType::f32;  ///< of the first moment
  std::uint32_t step = 0;    ///< that have been taken, without skipped ones; 0 for an optimizer that does not count
};

/// One set of single-threaded loops. [Note: loops]
/// - Plain pointers, no streams, no threads, no allocation, no exceptions. Any alignment. Pointers point to element 0 and
///   [begin, end) counts elements (or rows), so that a caller splits a range by changing the bounds only.
/// - `DType` is f32, bf16 or f16 and is the dtype of every void* of the call, unless the comment says otherwise.
/// - Elementwise loops give the same bits for every split of a range. Those marked (=) also give the same bits on
///   every Isa: they use no fused multiply-add.
/// - Reductions over a row (layer norm, softmax, dot, sums) depend on the row only, but are rounded differently on
///   different Isas.
struct Loops {
  Isa isa = Isa::v2;

  // --- elementwise ----------------------------------------------------------------------------------------------
  void (*activation)(Activation, DType, const void* x, void* y, std::int64_t begin, std::int64_t end);
  /// dx may be dy or x.
  void (*activation_backward)(Activation, DType, const void* x, const void* dy, void* dx, std::int64_t begin, std::int64_t end);
  /// y = silu(gate) * up.
  void (*swiglu)(DType, const void* gate, const void* up, void* y, std::int64_t begin, std::int64_t end);
  /// dgate and dup nullable; each may be gate, up or dy.
  void (*swiglu_backward)(DType, const void* gate, const void* up, const void* dy, void* dgate, void* dup, std::int64_t begin,
                          std::int64_t end);
  /// (=) One token's heads, x [heads, 2*half]: the pair (x[i], x[i + half]) of each becomes (x[i] cos[i] - x[i + half]
  /// sin[i], x[i + half] cos[i] + x[i] sin[i]). y may be x.
  void (*rotate_heads)(DType, const void* x, const float* cos, const float* sin, std::int64_t heads, std::int64_t half, void* y);
  /// (=) y may be a or b.
  void (*add)(DType, const void* a, const void* b, void* y, std::int64_t begin, std::int64_t end);
  /// (=) Dtypes in any combination, computed in f32: dst = factor * src or dst = dst + factor * src.
  /// src may be dst when the dtypes are equal.
  void (*scale)(const void* src, DType src_dtype, float factor, void* dst, DType dst_dtype, Write mode, std::int64_t begin,
                std::int64_t end);
  /// (=) Dtypes in any combination, moment8 and square8 too; round to nearest even, NaN stays NaN; equal dtypes copy bytes.
  void (*convert)(const void* src, DType src_dtype, void* dst, DType dst_dtype, std::int64_t begin, std::int64_t end);
  /// (=) any dtype; integers are truncated from double.
  void (*fill)(void* x, DType, double value, std::int64_t begin, std::int64_t end);
  /// (=) dst[i] = sum over sources in order, folded from the left in f32, rounded once. dst may be a source.
  void (*fold_sum)(DType, const void* const* sources, std::int64_t num_sources, void* dst, std::int64_t begin, std::int64_t end);
  /// (=) The maximum; NaN in any source gives NaN.
  void (*fold_max)(DType, const void* const* sources, std::int64_t num_sources, void* dst, std::int64_t begin, std::int64_t end);
  /// (=) x[i - begin] = std * normal number i of the stream.  A RandomKey converts.
  void (*normal)(DType, void* x, const PhiloxStream& stream, float std, std::int64_t begin, std::int64_t end);
  /// (=) One row: y[i] = keep(i) ? factor * x[i] : 0 with keep(i) = word i of the stream >= threshold.
  void (*dropout)(DType, const void* x, void* y, const PhiloxStream& stream, std::uint32_t threshold, float factor, std::int64_t begin,
                  std::int64_t end);
  /// (=) param and grad are f32, moments as their format says: f32, bf16, or moment8 and square8.
  void (*adamw)(const AdamWCoefficients&, MomentFormat, float* param, const float* grad, void* exp_avg, void* exp_avg_sq,
                std::int64_t begin, std::int64_t end);
  /// momentum is null without momentum.
  void (*sgd)(const SgdCoefficients&, MomentFormat, float* param, const float* grad, void* momentum, std::int64_t begin, std::int64_t end);

  // --- layer norm, rows [begin, end) of [., cols] -----------------------------------------------------------------
  /// mean, rstd [rows] nullable (both or none).
  void (*layer_norm)(DType, const void* x, const void* gamma, const void* beta, double eps, std::int64_t cols, void* y, float* mean,
                     float* rstd, std::int64_t begin, std::int64_t end);
  /// dx nullable, may be dy; dgamma, dbeta [cols] f32 are added to (both or none; null: not wanted).
  void (*layer_norm_backward)(DType, const void* dy, const void* x, const void* gamma, const float* mean, const float* rstd,
                              std::int64_t cols, void* dx, Write dx_mode, float* dgamma, float* dbeta, std::int64_t begin,
                              std::int64_t end);

  // --- root mean square norm, rows [begin, end) of [., cols] --------------------------------------------------------
  /// rstd [rows] nullable.
  void (*rms_norm)(DType, const void* x, const void* gamma, double eps, std::int64_t cols, void* y, float* rstd, std::int64_t begin,
                   std::int64_t end);
  /// dx nullable, may be dy; dgamma [cols] f32 is added to (null: not wanted).
  void (*rms_norm_backward)(DType, const void* dy, const void* x, const void* gamma, const float* rstd, std::int64_t cols, void* dx,
                            Write dx_mode, float* dgamma, std::int64_t begin, std::int64_t end);

  // --- sums -------------------------------------------------------------------------------------------------------
  /// sums[j] += sum over rows [row_begin, row_end) of x[row, j], j in [col_begin, col_end). A column's bits do not
  /// depend on the split of the columns.
  void (*column_sums)(DType, const void* x, std::int64_t cols, std::int64_t row_begin, std::int64_t row_end, std::int64_t col_begin,
                      std::int64_t col_end, float* sums);
  /// Sum of |x|^p in double; p = 1 and 2 are fast.
  double (*power_sum)(DType, const void* x, double p, std::int64_t begin, std::int64_t end);
  /// (=) Adds |x|^p, p finite, to limbs [ExactSum::kLimbs]; at most 2^20 elements between two carries.
  void (*exact_power_sum)(DType, const void* x, double p, std::int64_t begin, std::int64_t end, std::int64_t* limbs);
  /// Max of |x|, 0 for an empty range, NaN if any is.
  float (*abs_max)(DType, const void* x, std::int64_t begin, std::int64_t end);
  /// Sum of x[i] * y[i], i < n, in f32; the dtypes may differ.
  float (*dot)(DType x_dtype, const void* x, DType y_dtype, const void* y, std::int64_t n);

  // --- cross-entropy of f32 logits -----------------------------------------------------------------------------------
  /// Cross-entropy of one row, n classes: returns log(sum) + max - logits[target]. softmax: takes max and sum; null: not wanted.
  float (*cross_entropy_row)(const float* logits, std::int64_t n, std::int64_t target, RowSoftmax* softmax);
  /// dlogits[i] = factor * (p[i] - (i == target)), may be logits (also with a 2-byte dtype).
  void (*cross_entropy_backward_row)(const float* logits, std::int64_t n, std::int64_t target, const RowSoftmax& softmax, float factor,
                                     void* dlogits, DType dtype);

  /// One query [dim] over n keys and values of one head, rows `stride` elements apart: y = sum of p[i] * value i with p the softmax
  /// of factor * q . key i. scores: [n] f32 of scratch.
  void (*attend)(DType, const void* q, const void* keys, const void* values, std::int64_t stride, std::int64_t n, std::int64_t dim,
                 float factor, float* scores, void* y);

  // --- products of few rows with many weights ([Note: thin products] in thin_product.hpp) -----------------------------
  /// A row of k elements as thin_product() wants it for weights of w_dtype: f32, thin_length(k) of them, zeros behind the row.
  void (*thin_row)(DType w_dtype, DType x_dtype, const void* x, std::int64_t k, float* out);
  /// c[r * ldc + j] = x[r, :] . w[j, :] for r < rows and j < cols, in f32. x: rows of thin_row(), ldx apart; rows <= kThinRows. The
  /// bits of a sum depend on k only.
  void (*thin_product)(DType w_dtype, const void* w, std::int64_t ldw, const float* x, std::int64_t ldx, std::int64_t rows, std::int64_t k,
                       std::int64_t cols, float* c, std::int64_t ldc);

  /// y[i] = e^x[i], i < n: for tests of its accuracy.
  void (*exp)(const float* x, float* y, std::int64_t n);
};

/// The best set this processor runs, or the one that MICA_CPU_ISA=v2|v3|v4 names. Chosen once, thread-safe.
/// @throws ConfigError when the variable names an unknown set or one the processor lacks.
[[nodiscard]] const Loops& loops();
/// The set of one Isa; null when this processor cannot run it.
[[nodiscard]] const Loops* loops_of(Isa isa);
[[nodiscard]] std::string_view isa_name(Isa isa);

}  // namespace mica::cpu
