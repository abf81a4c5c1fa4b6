// SPDX-License-Identifier: Apache-2.0
#include "mica/nn/grouped_query_attention.hpp"

#include "mica/nn/fan_out.hpp"
#include "mica/nn/input_check.hpp"
#include "mica/nn/key_value_cache.hpp"

namespace mica::nn {
namespace {

constexpr std::size_t kQkvRecord = 0, kOutRecord = 1;  // children of the Record, in call order

const GroupedQueryAttentionOptions& validated(const GroupedQueryAttentionOptions& o) {
  require<ConfigError>(o.kv_heads > 0 && o.heads % o.kv_heads == 0,
                       "model.heads {} is not divisible by model.kv_heads {}: every key and value head serves the same number of "
                       "query heads",
                       o.heads, o.kv_heads);
  require<ConfigError>(o.head_dim > 0 && o.head_dim % 2 == 0,
                       "the head size is {}, expected an even number: rotary positions rotate pairs of channels (set "
                       "model.head_dim, or model.width / model.heads)",
                       o.head_dim);
  o.rotary.validate();
  return o;
}

}  // namespace

GroupedQueryAttention::GroupedQueryAttention(const GroupedQueryAttentionOptions& o)
    : Module("grouped_query_attention"),
      heads_(validated(o).heads),
      kv_heads_(o.kv_heads),
      head_dim_(o.head_dim),
      frequencies_(rotary_frequencies(o.rotary, o.head_dim)),
      qkv_{&add_child<Linear>("q_proj", o.width, heads_ * head_dim_, LinearOptions{.bias = false, .weight_std = o.weight_std}),
           &add_child<Linear>("k_proj", o.width, kv_heads_ * head_dim_, LinearOptions{.bias = false, .weight_std = o.weight_std}),
           &add_child<Linear>("v_proj", o.width, kv_heads_ * head_dim_, LinearOptions{.bias = false, .weight_std = o.weight_std})},
      o_proj_(add_child<Linear>("o_proj", heads_ * head_dim_, o.width, LinearOptions{.bias = false, .weight_std = o.weight_std})) {}

Tensors GroupedQueryAttention::do_forward(Context& context, Tensors xs, Record* record) {
  expect_inputs(*this, xs, 1);
  require<Error>(xs[0].shape().num_dims() == 3, "a '{}' takes [batch, seq_len, width], got {}", type_name(), xs[0].shape().to_string());
  Tensors qkv = fan_out_forward(context, qkv_, xs[0], child_record(record));
  xs.clear();
  if (!context.cache) {  // with one, the kernel rotates: it knows the positions
    qkv[kQ] = rotate(context, qkv[kQ], Turn::forward);
    qkv[kK] = rotate(context, qkv[kK], Turn::forward);
  }
  const AttentionShape shape = shape_of(qkv[kQ]);
  Tensor y = context.make(qkv[kQ].shape(), qkv[kQ].dtype());
  y.needs_grad = record && (qkv[kQ].needs_grad || qkv[kK].needs_grad || qkv[kV].needs_grad);
  Tensor lse;
  if (y.needs_grad) {
    lse = context.make({shape.batch, shape.heads, shape.seq_len}, DType::f32);
    record->saved = {qkv[kQ], qkv[kK], qkv[kV], y, lse};
  }
  const ConstQkv in{qkv[kQ], qkv[kK], qkv[kV]};
  if (context.cache) {
    const AttentionCache cache = context.cache->of(*this, context, shape.kv_width(), y.dtype());
    context.kernels.attention_cached(context.compute, shape, in, frequencies_, cache, context.cache->rows(), y);
  } else {
    context.kernels.attention(context.compute, shape, in, y, lse);
  }
  qkv.clear();
  return o_proj_.forward(context, list_of(std::move(y)), child_record(record));
}

Tensors GroupedQueryAttention::do_backward(Context& context, Record& record, Tensors dys) {
  dys = o_proj_.backward(context, std::move(record.child(kOutRecord)), std::move(dys));
  if (!dys[0]) return Tensors(1);
  Tensors dqkv;
  {
    const Tensor q = record.take(kQ), k = record.take(kK), v = record.take(kV), y = record.take(kY), lse = record.take(kLse);
    for (const Tensor* x : {&q, &k, &v}) dqkv.push_back(context.make(x->shape(), x->dtype()));
    context.kernels.attention_backward(context.compute, shape_of(q), dys[0], ConstQkv{q, k, v}, y, lse, Qkv{dqkv[kQ], dqkv[kK], dqkv[kV]});
    dys.clear();
    const bool needed[] = {q.needs_grad, k.needs_grad, v.needs_grad};
    for (const std::size_t part : {kQ, kK, kV}) {
      if (!needed[part]) {
        dqkv[part] = Tensor();  // the kernel makes all three together
      } else if (part != kV) {
        dqkv[part] = rotate(context, dqkv[part], Turn::back);
      }
    }
  }
  return list_of(fan_out_backward(context, qkv_, record.child(kQkvRecord), std::move(dqkv)));
}

Tensor* GroupedQueryAttention::do_saved_input(Record& record) { return fan_out_saved_input(record.child(kQkvRecord)); }

AttentionShape GroupedQueryAttention::shape_of(const Tensor& q) const {
  return {.batch = q.shape()[0], .seq_len = q.shape()[1], .heads = heads_, .head_dim = head_dim_, .kv_heads = kv_heads_};
}

/// x with its pairs rotated, in place where nobody else holds it.
Tensor GroupedQueryAttention::rotate(Context& context, const Tensor& x, Turn turn) const {
  Tensor y = x.is_unique() ? x : context.make(x.shape(), x.dtype());
  y.needs_grad = x.needs_grad;
  context.kernels.rotary(context.compute, x, frequencies_, turn, y);
  return y;
}

}  // namespace mica::nn
