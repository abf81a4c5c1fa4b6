// SPDX-License-Identifier: Apache-2.0
#include "attention_arguments.hpp"

#include "arguments.hpp"

namespace mica::arguments {

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

void expect_inputs(std::string_view kernel, const AttentionShape& shape, const ConstQkv& in) {
  require(shape.head_dim > 0 && shape.heads > 0 && shape.batch >= 0 && shape.seq_len >= 0,
          "{}: shape batch {}, seq_len {}, heads {}, head_dim {} is not a shape of attention", kernel, shape.batch, shape.seq_len,
          shape.heads, shape.head_dim);
  require(shape.kv_heads >= 0 && shape.heads % shape.num_kv_heads() == 0,
          "{}: {} heads do not divide into {} groups of equal size, one for each k and v", kernel, shape.heads, shape.kv_heads);
  expect_qkv(kernel, shape, in, {"qkv", "q", "k", "v"}, kFloats);
}

}  // namespace

void expect_attention(const AttentionShape& shape, const ConstQkv& in, ConstTensorView y, ConstTensorView lse) {
  expect_inputs("attention", shape, in);
  expect("attention", "y", y, shape.batch * shape.seq_len * shape.q_width(), {in.q.dtype});
  expect_optional("attention", "lse", lse, shape.batch * shape.heads * shape.seq_len, {DType::f32});
}

void expect_attention_backward(const AttentionShape& shape, ConstTensorView dy, const ConstQkv& in, ConstTensorView y, ConstTensorView lse,
                               const Qkv& d_in) {
  expect_inputs("attention_backward", shape, in);
  const std::int64_t numel = shape.batch * shape.seq_len * shape.q_width();
  expect("attention_backward", "dy", dy, numel, {in.q.dtype});
  expect("attention_backward", "y", y, numel, {in.q.dtype});
  expect("attention_backward", "lse", lse, shape.batch * shape.heads * shape.seq_len, {DType::f32});
  require(d_in.is_packed() == in.is_packed(),
          "attention_backward: q, k and v are packed in one tensor or their gradients are, expected both or neither");
  expect_qkv("attention_backward", shape, {.q = d_in.q, .k = d_in.k, .v = d_in.v}, {"dqkv", "dq", "dk", "dv"}, {in.q.dtype});
}

}  // namespace mica::arguments
