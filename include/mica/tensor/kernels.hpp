// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "mica/device/pool.hpp"
#include "mica/tensor/philox.hpp"
#include "mica/tensor/row_turns.hpp"
#include "mica/tensor/tensor_view.hpp"

namespace mica {

/// Whether a result replaces the output's content or is added to it.
enum class Write : std::uint8_t { overwrite, accumulate };

/// Elementwise activation functions.
enum class Activation : std::uint8_t {
  gelu,  ///< tanh approximation, as in GPT-2's "gelu_new"
  relu,
  silu,  ///< x / (1 + e^-x)
  tanh,
};

/// The loss of one output x with target t.
enum class ElementLoss : std::uint8_t {
  squared_error,         ///< (x - t)^2
  binary_cross_entropy,  ///< -t log(p) - (1 - t) log(1 - p) with p = 1 / (1 + e^-x): x is a logit
};

/// p of a p-norm; kInfNorm takes the maximum.
inline constexpr double kInfNorm = 1e308;

struct AdamWArgs {
  TensorView param;       // [n] f32 master
  ConstTensorView grad;   // [n] f32
  TensorView exp_avg;     // [n] f32; on a CPU also bf16 or moment8 [Note: rounding of moments]
  TensorView exp_avg_sq;  // [n] as exp_avg; square8 beside moment8
  double lr = 0, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  std::int64_t step = 1;            ///< counts from 1: bias correction
  ConstTensorView grad_scale;       ///< [1] f32 multiplied into the gradient (clip coefficient), or absent
  ConstTensorView skip;             ///< [1] f32: if not 0, nothing changes; or absent
  ConstTensorView skipped_steps{};  ///< [1] f32 subtracted from `step`, or absent
};

struct SgdArgs {
  TensorView param;            // [n] f32 master
  ConstTensorView grad;        // [n] f32
  TensorView momentum_buffer;  // [n] as AdamWArgs::exp_avg; absent without momentum
  double lr = 0, momentum = 0, dampening = 0, weight_decay = 0;
  bool nesterov = false;
  bool first_step = false;  ///< the momentum buffer is set to the gradient
  ConstTensorView grad_scale;
  ConstTensorView skip;
};

/// The state of a loss scale and the outcome of a step. All [1] f32.
struct ScaleUpdateArgs {
  TensorView scale;
  TensorView growth_tracker;  ///< steps without an overflow since the scale last changed
  TensorView skipped_steps;   ///< one more after an overflow
  ConstTensorView found_inf;  ///< not 0: an overflow
  double growth_factor = 2, backoff_factor = 0.5;
  std::int64_t growth_interval = 2000;
};

struct AttentionShape {
  std::int64_t batch = 0;     // B
  std::int64_t seq_len = 0;   // T
  std::int64_t heads = 0;     // H
  std::int64_t head_dim = 0;  // D; width C = H*D
  std::int64_t kv_heads = 0;  // K, divides H: heads [i*H/K, (i+1)*H/K) share k and v i; 0: each head has its own

  [[nodiscard]] std::int64_t num_kv_heads() const { return kv_heads == 0 ? heads : kv_heads; }
  /// Heads that share one k and v.
  [[nodiscard]] std::int64_t group() const { return heads / num_kv_heads(); }
  [[nodiscard]] std::int64_t q_width() const { return heads * head_dim; }
  [[nodiscard]] std::int64_t kv_width() const { return num_kv_heads() * head_dim; }
  /// Columns of q, k and v side by side; 3*C where each head has its own.
  [[nodiscard]] std::int64_t qkv_width() const { return q_width() + 2 * kv_width(); }
};

/// q [B,T,H*D], k and v [B,T,K*D] of attention (or their gradients). k and v absent: all three side by side in q,
/// [B,T,(H+2*K)*D].
template <bool kConst>
struct BasicQkv {
  BasicTensorView<kConst> q, k{}, v{};
  [[nodiscard]] bool is_packed() const { return !k && !v; }
};
using Qkv = BasicQkv<false>;
using ConstQkv = BasicQkv<true>;

/// Keys and values of tokens that sequences had before, for attention_cached(). A slot holds one sequence, by position.
struct AttentionCache {
  TensorView keys{}, values{};  // [slots, capacity, K*D] each

  [[nodiscard]] std::int64_t slots() const { return keys.shape[0]; }
  [[nodiscard]] std::int64_t capacity() const { return keys.shape[1]; }
};
/// A row of a batch goes on with the sequence in a slot.
struct CachedRow {
  std::int64_t slot = 0;
  std::int64_t past = 0;  ///< tokens that the sequence has there: the position of the row's first token
};

/// Direction of rotary(): forward, or back by the same angles (its backward).
enum class Turn : std::uint8_t { forward, back };

/// `count` blocks of `numel` elements each, from one array into another; all figures in elements.
struct BlockCopy {
  std::int64_t src = 0, dst = 0;  ///< where the first block begins
  std::int64_t numel = 0;
  std::int64_t count = 1;
  std::int64_t src_stride = 0, dst_stride = 0;  ///< from the start of one block to the start of the next

  /// The copy in the opposite direction.
  [[nodiscard]] BlockCopy reversed() const { return {dst, src, numel, count, dst_stride, src_stride}; }
};

/// One product C[m,n] = A[m,k] B[k,n] of a step; mica-bench's bounds are made of these. dtype: A's and B's.
struct ProductShape {
  std::int64_t m = 0, n = 0, k = 0;
  bool transposed_a = false, transposed_b = false;
  DType dtype = DType::f32;
  const char* task = "";  ///< the name of the task that computes it, on CPUs
};

/// The math of all layers on one device. [Note: kernels]
/// Every call enqueues on the stream and returns; views must stay valid until the stream has run it. Matrices are
/// row-major; weights are [out, in]. Activations and parameters are f32, bf16 or f16 (equal within a call unless noted),
/// accumulation is f32 or better; gradients of parameters may be any of the three, whatever the parameters' dtype.
/// Elementwise kernels give the same bits for any split of their range. Scratch memory comes from the pool
/// (role workspace). Outputs may hold anything before an overwriting call. An absent view (null data) of an optional
/// argument means "not wanted". M = rows, the product of all dims but the last.
class Kernels {
 public:
  virtual ~Kernels() = default;
  /// "cpu (oneDNN 2.6.3, avx512_core_bf16)"
  [[nodiscard]] virtual std::string description() const = 0;
  /// False: no native bf16 here; products are computed in f32 (correct, but slower than f32 itself). The trainer warns.
  [[nodiscard]] virtual bool bf16_is_native() const { return true; }
  /// The same for f16.
  [[nodiscard]] virtual bool f16_is_native() const { return true; }
  /// Appends every product enqueued from now on to `list`, which must stay alive until this is called with null to stop it.
  virtual void record_products(std::vector<ProductShape>* list) { static_cast<void>(list); }

  // --- products -------------------------------------------------------------------------------------------------
  /// y[M,N] = x[M,K] w[N,K]^T + bias[N]; bias optional; y may be f32 for bf16 and f16 inputs.
  virtual void linear(Stream& s, ConstTensorView x, ConstTensorView w, ConstTensorView bias, TensorView y) = 0;
  /// dx[M,K] (+)= dy[M,N] w[N,K]
  virtual void linear_backward_input(Stream& s, ConstTensorView dy, ConstTensorView w, TensorView dx, Write mode) = 0;
  /// dw[N,K] (+)= dy[M,N]^T x[M,K]; dbias[N] (+)= column sums of dy, optional.
  virtual void linear_backward_params(Stream& s, ConstTensorView dy, ConstTensorView x, TensorView dw, TensorView dbias, Write mode) = 0;
  /// pre = x w^T + bias, as in linear(); y = gelu(pre), as in activation(); all of one dtype except the bias. pre is optional and
  /// y's bits do not depend on whether it is given. On a GPU y may be computed from pre before it is rounded.
  virtual void linear_gelu(Stream& s, ConstTensorView x, ConstTensorView w, ConstTensorView bias, TensorView pre, TensorView y) = 0;
  /// dpre[M,K] = (dy[M,N] w[N,K]) * gelu'(pre), the gradient of the input of the GELU before a linear layer.
  virtual void linear_gelu_backward_input(Stream& s, ConstTensorView dy, ConstTensorView w, ConstTensorView pre, TensorView dpre) = 0;

  // --- layers ---------------------------------------------------------------------------------------------------
  /// y = f(x)
  virtual void activation(Stream& s, Activation f, ConstTensorView x, TensorView y) = 0;
  /// dx = dy * f'(x); dx may be dy.
  virtual void activation_backward(Stream& s, Activation f, ConstTensorView x, ConstTensorView dy, TensorView dx) = 0;
  /// Over the last dim. mean and rstd: [M] f32, optional (both or none).
  virtual void layer_norm(Stream& s, ConstTensorView x, ConstTensorView gamma, ConstTensorView beta, double eps, TensorView y,
                          TensorView mean, TensorView rstd) = 0;
  /// dx (optional) is written by `dx_mode` (accumulate: the residual path's gradient is already there);
  /// dgamma, dbeta [C] by `param_mode`, both optional.
  virtual void layer_norm_backward(Stream& s, ConstTensorView dy, ConstTensorView x, ConstTensorView gamma, ConstTensorView mean,
                                   ConstTensorView rstd, TensorView dx, Write dx_mode, TensorView dgamma, TensorView dbeta,
                                   Write param_mode) = 0;
  /// y = x / sqrt(mean(x^2) + eps) * gamma over the last dim. rstd: [M] f32, optional.
  virtual void rms_norm(Stream& s, ConstTensorView x, ConstTensorView gamma, double eps, TensorView y, TensorView rstd) = 0;
  /// dx (optional, may be dy) is written by `dx_mode`, dgamma [C] (optional) by `param_mode`.
  virtual void rms_norm_backward(Stream& s, ConstTensorView dy, ConstTensorView x, ConstTensorView gamma, ConstTensorView rstd,
                                 TensorView dx, Write dx_mode, TensorView dgamma, Write param_mode) = 0;
  /// sum = a + b and its norm, in one pass over memory, with the bits of add() followed by layer_norm() or rms_norm().
  /// sum may be a or b.
  virtual void add_layer_norm(Stream& s, ConstTensorView a, ConstTensorView b, TensorView sum, ConstTensorView gamma, ConstTensorView beta,
                              double eps, TensorView y, TensorView mean, TensorView rstd) = 0;
  virtual void add_rms_norm(Stream& s, ConstTensorView a, ConstTensorView b, TensorView sum, ConstTensorView gamma, double eps,
                            TensorView y, TensorView rstd) = 0;
  /// y = silu(gate) * up, silu(x) = x / (1 + e^-x).
  virtual void swiglu(Stream& s, ConstTensorView gate, ConstTensorView up, TensorView y) = 0;
  /// dgate = dy * up * silu'(gate), dup = dy * silu(gate), each optional; each may be gate, up or dy (but not both the
  /// same one).
  virtual void swiglu_backward(Stream& s, ConstTensorView gate, ConstTensorView up, ConstTensorView dy, TensorView dgate,
                               TensorView dup) = 0;
  /// Rotary position embedding: in x [B,T,H*D], D = 2 * inv_freq.size(), the pair (x[i], x[i + D/2]) of every head of token t
  /// is rotated by the angle t * inv_freq[i]. Angles are computed in double. y may be x; inv_freq is copied at the call.
  /// Turn::back is the backward (x = dy) and the inverse.
  virtual void rotary(Stream& s, ConstTensorView x, std::span<const double> inv_freq, Turn turn, TensorView y) = 0;
  /// y[b,t,:] = tokens[ids[b,t],:] + positions[t,:]; ids [B,T] i32 in range; positions [>=T, C] optional. If an id is out of
  /// range, the CPU's stream fails with an error that names it; on a GPU the row becomes NaN and gets no gradient.
  virtual void embedding(Stream& s, ConstTensorView ids, ConstTensorView tokens, ConstTensorView positions, TensorView y) = 0;
  /// Deterministic. dtokens [V,C], dpositions [>=T,C], each optional; overwrite also zeroes the rows of ids that do not occur.
  /// @param turns  those in which dtokens is written ([Note: writing in turns]); null: it is this rank's own. On a CPU only.
  virtual void embedding_backward(Stream& s, ConstTensorView dy, ConstTensorView ids, TensorView dtokens, Write tokens_mode,
                                  TensorView dpositions, Write positions_mode, RowTurns* turns = nullptr) = 0;
  /// Causal self-attention, scale 1/sqrt(D); y [B,T,C]; lse [B,H,T] f32 (log-sum-exp of each row, for backward),
  /// optional. At most one head's scores exist at a time per thread.
  virtual void attention(Stream& s, const AttentionShape& shape, const ConstQkv& in, TensorView y, TensorView lse) = 0;
  /// d_in overwritten, laid out like `in`. The heads of a group add up their gradients of k and v in f32.
  virtual void attention_backward(Stream& s, const AttentionShape& shape, ConstTensorView dy, const ConstQkv& in, ConstTensorView y,
                                  ConstTensorView lse, const Qkv& d_in) = 0;
  /// Causal self-attention of tokens that follow others: row b's token t has position rows[b].past + t in its slot and sees all
  /// positions up to its own. k and v are written to the cache first. With inv_freq (as rotary() has it; empty: none), q and k
  /// are rotated by their positions before. in: q [B,T,H*D] and k, v [B,T,K*D], or packed; y [B,T,H*D]; all of one dtype. `rows`
  /// (one per row of the batch, each another slot) and inv_freq are copied at the call. A row's bits do not depend on the other
  /// rows. On a CPU only: a GPU's kernels refuse it.
  virtual void attention_cached(Stream& s, const AttentionShape& shape, const ConstQkv& in, std::span<const double> inv_freq,
                                const AttentionCache& cache, std::span<const CachedRow> rows, TensorView y) = 0;
  /// attention() with q, k and v packed in one tensor.
  void attention(Stream& s, const AttentionShape& shape, ConstTensorView qkv, TensorView y, TensorView lse) {
    attention(s, shape, ConstQkv{.q = qkv}, y, lse);
  }
  void attention_backward(Stream& s, const AttentionShape& shape, ConstTensorView dy, ConstTensorView qkv, ConstTensorView y,
                          ConstTensorView lse, TensorView dqkv) {
    attention_backward(s, shape, dy, ConstQkv{.q = qkv}, y, lse, Qkv{.q = dqkv});
  }
  /// loss[1] f32 = scale * sum over rows of -log softmax(hidden w^T)[target]; hidden [M,C], w [V,C],
  /// targets [M] i32, -1 = row ignored. The logits exist only a few rows at a time.
  virtual void head_loss(Stream& s, ConstTensorView hidden, ConstTensorView w, ConstTensorView targets, double scale, TensorView loss) = 0;
  /// The loss and its gradient, with one product for the logits. dloss [1] f32; loss (optional), dhidden (optional)
  /// overwritten; dw [V,C] (optional) by `dw_mode`.
  /// @param turns  those in which dw is written, as in embedding_backward()
  virtual void head_loss_backward(Stream& s, ConstTensorView hidden, ConstTensorView w, ConstTensorView targets, double scale,
                                  ConstTensorView dloss, TensorView loss, TensorView dhidden, TensorView dw, Write dw_mode,
                                  RowTurns* turns = nullptr) = 0;
  /// For generation: out [M,V] f32 = hidden [M,C] w[V,C]^T.
  void logits(Stream& s, ConstTensorView hidden, ConstTensorView w, TensorView out) { linear(s, hidden, w, {}, out); }
  /// y = x with each element dropped with probability p, kept ones scaled by 1/(1-p). x [B, ...]; row b is drawn from
  /// key with sequence = sequences[b] (i64 [B], host memory copied at the call) and element = index inside the row.
  /// Also its own backward (x = dy).
  virtual void dropout(Stream& s, ConstTensorView x, double p, const RandomKey& key, std::span<const std::int64_t> sequences,
                       TensorView y) = 0;

  // --- losses: means over whole outputs, NaN over no elements --------------------------------------------------------
  /// loss[1] f32 = the mean of f over the elements of x; targets: as many, f32 or x's dtype.
  virtual void element_loss(Stream& s, ElementLoss f, ConstTensorView x, ConstTensorView targets, TensorView loss) = 0;
  /// dx = dloss[0] times the loss's derivative; dx may be x.
  virtual void element_loss_backward(Stream& s, ElementLoss f, ConstTensorView x, ConstTensorView targets, ConstTensorView dloss,
                                     TensorView dx) = 0;
  /// loss[1] f32 = the mean of -log softmax(logits)[target] over the rows whose target is not `ignored`; logits [M,V],
  /// targets [M] i32. On a target that is neither a class nor `ignored` the CPU's stream fails with an error that names it; on a
  /// GPU the loss and the row's gradient become NaN.
  virtual void cross_entropy(Stream& s, ConstTensorView logits, ConstTensorView targets, std::int32_t ignored, TensorView loss) = 0;
  /// dlogits = dloss[0] times the loss's derivative, zero in ignored rows; dlogits may be logits.
  virtual void cross_entropy_backward(Stream& s, ConstTensorView logits, ConstTensorView targets, std::int32_t ignored,
                                      ConstTensorView dloss, TensorView dlogits) = 0;

  // --- elementwise ----------------------------------------------------------------------------------------------
  /// y = a + b; y may be a or b.
  virtual void add(Stream& s, ConstTensorView a, ConstTensorView b, TensorView y) = 0;
  /// dst = factor * src, or dst += factor * src; dtypes may differ (f32, bf16, f16), computed in f32; src may be dst.
  virtual void scale(Stream& s, ConstTensorView src, double factor, TensorView dst, Write mode) = 0;
  /// x *= factor[0] (f32), unless factor[0] == 1.
  virtual void scale_by(Stream& s, TensorView x, ConstTensorView factor) = 0;
  /// Copies bytes (any dtype), or converts between f32, bf16 and f16, rounding to nearest even. Not overlapping.
  virtual void copy(Stream& s, ConstTensorView src, TensorView dst) = 0;
  /// Copies blocks of elements in one task; src and dst have the same dtype and do not overlap. `blocks` is copied.
  virtual void copy_blocks(Stream& s, ConstTensorView src, TensorView dst, std::span<const BlockCopy> blocks) = 0;
  virtual void fill(Stream& s, TensorView x, double value) = 0;
  /// x = std times elements [begin, begin + x.numel()) of the key's stream of normal numbers (random_normal()).
  virtual void fill_normal(Stream& s, TensorView x, const RandomKey& key, std::int64_t begin, double std) = 0;

  // --- norms and optimizers ---------------------------------------------------------------------------------------
  /// out[1] f32 (+)= sum of |x|^p, accumulated in double within the call; for kInfNorm the maximum.
  virtual void power_sum(Stream& s, ConstTensorView x, double p, TensorView out, Write mode) = 0;
  /// limbs [ExactSum::kLimbs] i64 (+)= sum of |x|^p as in [Note: exact sums]: the same bits for any order and any split of the
  /// elements over calls, threads and ranks; for p = 1 and 2 also on any device (other p use the device's pow).
  /// p finite. x f32, bf16 or f16.
  virtual void exact_power_sum(Stream& s, ConstTensorView x, double p, TensorView limbs, Write mode) = 0;
  /// out[1] f32 = the sum of all rows of limbs [n, ExactSum::kLimbs] i64.
  virtual void exact_sum_value(Stream& s, ConstTensorView limbs, TensorView out) = 0;
  /// out[1] i64 = a hash of the bits of x (f32) and their positions: sum over i of mix64(i << 32 | bits of x[i]). One differing
  /// element always changes it, several do with probability 1 - 2^-64.
  virtual void fingerprint(Stream& s, ConstTensorView x, TensorView out) = 0;
  /// norm[1] = sum[1]^(1/p); coefficient[1] = min(1, max_norm / (norm + 1e-6)) (1 when max_norm is infinite).
  virtual void clip_coefficient(Stream& s, ConstTensorView sum, double p, double max_norm, TensorView norm, TensorView coefficient) = 0;
  /// x /= scale[0] (x times the f32 inverse); found_inf[0] becomes 1 if an element of x was infinite or NaN, and
  /// is otherwise unchanged. scale and found_inf: [1] f32.
  virtual void unscale(Stream& s, TensorView x, ConstTensorView scale, TensorView found_inf) = 0;
  /// After an overflow scale *= backoff_factor; after growth_interval steps without one scale *= growth_factor, unless
  /// that is infinite.
  virtual void update_scale(Stream& s, const ScaleUpdateArgs& args) = 0;
  /// Steps all tensors in one task (on a GPU one launch for a few dozen). They share grad_scale, skip and skipped_steps but no
  /// other memory. The bits are those of single calls.
  virtual void adamw(Stream& s, std::span<const AdamWArgs> list) = 0;
  virtual void sgd(Stream& s, std::span<const SgdArgs> list) = 0;
  void adamw(Stream& s, const AdamWArgs& args) { adamw(s, std::span(&args, 1)); }
  void sgd(Stream& s, const SgdArgs& args) { sgd(s, std::span(&args, 1)); }
};

struct CpuKernelsOptions {
  /// True: bf16 instructions if the processor has them. False: none, as on a processor without them (tests).
  bool use_native_bf16 = true;
  /// Most bytes of logits that head_loss holds at a time; at least one row, and a sixteenth of all.
  std::int64_t logits_bytes = 64 << 20;
};
/// oneDNN for products, own loops for the rest. `pool` outlives it. One host thread.
[[nodiscard]] std::unique_ptr<Kernels> make_cpu_kernels(Pool& pool, const CpuKernelsOptions& options = {});
/// Plain loops with double accumulation: the oracle for tests. Slow.
[[nodiscard]] std::unique_ptr<Kernels> make_reference_kernels(Pool& pool);

}  // namespace mica
