#include "../arguments.hpp"
#include "attention.hpp"
#include "cpu_kernels.hpp"
#include "rotary.hpp"

namespace mica::cpu {

using namespace arguments;  // NOLINT(google-build-using-namespace)

namespace {

struct QkvNames {
  std::string_view packed, q, k, v;
};

void expect_qkv(std::string_view kernel, const AttentionShape& shape, const ConstQkv& qkv, const QkvNames& names,
                std::initializer_list<DType> dtypes) {
  const std::int64_t rows = shape.batch * shape.seq_len;
  if (qkv.is_packed()) return expect(kernel, names.packed, qkv.q, rows * shape.qkv_width(), dtypes);
  expect(kernel, names.q, qkv.q, rows * shape.q_width(), dtypes);
  expect(kernel, names.k, qkv.k, rows * shape.kv_width(), {qkv.q.dtype});
  expect(kernel, names.v, qkv.v, rows * shape.kv_width(), {qkv.q.dtype});
}

void expect_attention(std::string_view kernel, const AttentionShape& shape, const ConstQkv& in) {
  require(shape.head_dim > 0 && shape.heads > 0 && shape.batch >= 0 && shape.seq_len >= 0,
          "{}: shape batch {}, seq_len {}, heads {}, head_dim {} is not one of attention", kernel, shape.batch,
          shape.seq_len, shape.heads, shape.head_dim);
  require(shape.kv_heads >= 0 && shape.heads % shape.num_kv_heads() == 0,
          "{}: {} heads do not divide into {} groups of equal size, one for each k and v", kernel, shape.heads,
          shape.kv_heads);
  expect_qkv(kernel, shape, in, {"qkv", "q", "k", "v"}, kFloats);
}

}  // namespace

void CpuKernels::attention(Stream& s, const AttentionShape& shape, const ConstQkv& in, TensorView y, TensorView lse) {
  expect_attention("attention", shape, in);
  expect("attention", "y", y, shape.batch * shape.seq_len * shape.q_width(), {in.q.dtype});
  expect_optional("attention", "lse", lse, shape.batch * shape.heads * shape.seq_len, {DType::f32});
  if (y.numel() == 0) return;
  const Buffer space = scratch(s, attention_scratch_bytes(shape, threads_for(shape.batch * shape.heads, 1)));
  enqueue(s, "attention", {reads(in.q), reads(in.k), reads(in.v), mica::writes(y), mica::writes(lse), writes(space)},
          [=, memory = space.data()] { attention_forward(shape, in, y, lse, memory); });
}

void CpuKernels::attention_backward(Stream& s, const AttentionShape& shape, ConstTensorView dy, const ConstQkv& in,
                                    ConstTensorView y, ConstTensorView lse, const Qkv& d_in) {
  expect_attention("attention_backward", shape, in);
  const std::int64_t numel = shape.batch * shape.seq_len * shape.q_width();
  expect("attention_backward", "dy", dy, numel, {in.q.dtype});
  expect("attention_backward", "y", y, numel, {in.q.dtype});
  expect("attention_backward", "lse", lse, shape.batch * shape.heads * shape.seq_len, {DType::f32});
  require(d_in.is_packed() == in.is_packed(),
          "attention_backward: q, k and v are packed in one tensor or their gradients are, expected both or neither");
  expect_qkv("attention_backward", shape, {.q = d_in.q, .k = d_in.k, .v = d_in.v}, {"dqkv", "dq", "dk", "dv"},
             {in.q.dtype});
  if (numel == 0) return;
  const int threads = threads_for(shape.batch * shape.heads, shape.group());
  const Buffer space = scratch(s, attention_backward_scratch_bytes(shape, threads));
  enqueue(s, "attention_backward",
          {reads(dy), reads(in.q), reads(in.k), reads(in.v), reads(y), reads(lse), mica::writes(d_in.q),
           mica::writes(d_in.k), mica::writes(d_in.v), writes(space)},
          [=, memory = space.data()] { cpu::attention_backward(shape, dy, in, y, lse, d_in, memory); });
}

void CpuKernels::rotary(Stream& s, ConstTensorView x, std::span<const double> inv_freq, Turn turn, TensorView y) {
  const auto head_dim = 2 * static_cast<std::int64_t>(inv_freq.size());
  expect("rotary", "x", x, x.numel(), kFloats);
  if (x.shape.num_dims() != 3 || head_dim == 0 || x.shape[2] % head_dim != 0) {
    refuse("rotary", "x", x, fmt::format("[batch, seq_len, heads * {}], two columns for each frequency", head_dim));
  }
  expect("rotary", "y", y, x.numel(), {x.dtype});
  if (x.numel() == 0) return;
  const Buffer space = scratch(s, rotary_scratch_bytes(head_dim, rotary_threads(x)));
  enqueue(s, "rotary", {reads(x), mica::writes(y), writes(space)},
          [=, frequencies = std::vector<double>(inv_freq.begin(), inv_freq.end()), memory = space.data()] {
            cpu::rotary(x, frequencies, turn, y, memory);
          });
}

}  // namespace mica::cpu
