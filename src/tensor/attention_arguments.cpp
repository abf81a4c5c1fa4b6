// SPDX-License-Identifier: Apache-2.0
#include "attention_arguments.hpp"

#include <algorithm>

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

void expect_attention_cached(const AttentionShape& shape, const ConstQkv& in, std::span<const double> inv_freq, const AttentionCache& cache,
                             std::span<const CachedRow> rows, ConstTensorView y) {
  constexpr std::string_view kKernel = "attention_cached";
  expect_inputs(kKernel, shape, in);
  expect(kKernel, "y", y, shape.batch * shape.seq_len * shape.q_width(), {in.q.dtype});
  require(inv_freq.empty() || 2 * std::ssize(inv_freq) == shape.head_dim, "{}: {} frequencies for heads of {} columns, expected {}",
          kKernel, inv_freq.size(), shape.head_dim, shape.head_dim / 2);
  if (cache.keys.shape.num_dims() != 3) refuse(kKernel, "keys", cache.keys, "[slots, capacity, K*D]");
  const std::int64_t numel = cache.slots() * cache.capacity() * shape.kv_width();
  expect(kKernel, "keys", cache.keys, numel, {in.q.dtype});
  expect(kKernel, "values", cache.values, numel, {in.q.dtype});
  require(std::ssize(rows) == shape.batch, "{}: {} slots for {} sequences", kKernel, rows.size(), shape.batch);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const CachedRow& row = rows[i];
    require(row.slot >= 0 && row.slot < cache.slots() && row.past >= 0 && row.past + shape.seq_len <= cache.capacity(),
            "{}: slot {} with {} tokens and {} more does not fit a cache of {} slots for {} tokens each", kKernel, row.slot, row.past,
            shape.seq_len, cache.slots(), cache.capacity());
    require(
        std::none_of(rows.begin(), rows.begin() + static_cast<std::ptrdiff_t>(i), [&](const CachedRow& o) { return o.slot == row.slot; }),
        "{}: two sequences are in slot {}", kKernel, row.slot);
  }
}

}  // namespace mica::arguments
