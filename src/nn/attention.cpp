// SPDX-License-Identifier: Apache-2.0
#include "mica/nn/attention.hpp"

#include "mica/nn/input_check.hpp"
#include "mica/nn/key_value_cache.hpp"

namespace mica::nn {
namespace {
// Children of the Record, in call order.
constexpr std::size_t kAttnRecord = 0, kProjRecord = 1, kDropoutRecord = 2;
}  // namespace

CausalSelfAttention::CausalSelfAttention(const AttentionOptions& options)
    : Module("causal_self_attention"),
      width_(options.width),
      heads_(options.heads),
      c_attn_(add_child<Linear>("c_attn", options.width, 3 * options.width)),
      c_proj_(add_child<Linear>("c_proj", options.width, options.width, LinearOptions{.weight_std = options.proj_std})),
      resid_dropout_(add_child<Dropout>("resid_dropout", options.dropout, options.dropout_name)) {
  require<ConfigError>(heads_ > 0 && width_ % heads_ == 0,
                       "model.width {} is not divisible by model.heads {}: every head gets width / heads columns", width_, heads_);
}

Tensors CausalSelfAttention::do_forward(Context& context, Tensors xs, Record* record) {
  expect_inputs(*this, xs, 1);
  require<Error>(xs[0].shape().num_dims() == 3, "a '{}' takes [batch, seq_len, width], got {}", type_name(), xs[0].shape().to_string());
  Tensors qkv = c_attn_.forward(context, std::move(xs), child_record(record));
  const AttentionShape shape = shape_of(qkv[0]);
  Tensor y = context.make(with_last_dim(qkv[0].shape(), width_), qkv[0].dtype());
  y.needs_grad = record && qkv[0].needs_grad;
  Tensor lse;
  if (y.needs_grad) {
    lse = context.make({shape.batch, shape.heads, shape.seq_len}, DType::f32);
    record->saved = {qkv[0], y, lse};
  }
  if (context.cache) {
    const AttentionCache cache = context.cache->of(*this, context, width_, y.dtype());
    context.kernels.attention_cached(context.compute, shape, ConstQkv{.q = qkv[0]}, {}, cache, context.cache->rows(), y);
  } else {
    context.kernels.attention(context.compute, shape, qkv[0], y, lse);
  }
  qkv.clear();
  Tensors out = c_proj_.forward(context, list_of(std::move(y)), child_record(record));
  return resid_dropout_.forward(context, std::move(out), child_record(record));
}

Tensors CausalSelfAttention::do_backward(Context& context, Record& record, Tensors dys) {
  dys = resid_dropout_.backward(context, std::move(record.child(kDropoutRecord)), std::move(dys));
  dys = c_proj_.backward(context, std::move(record.child(kProjRecord)), std::move(dys));
  if (!dys[0]) return Tensors(1);
  {
    const Tensor qkv = record.take(kQkv), y = record.take(kY), lse = record.take(kLse);
    Tensor dqkv = context.make(qkv.shape(), qkv.dtype());
    context.kernels.attention_backward(context.compute, shape_of(qkv), dys[0], qkv, y, lse, dqkv);
    dys = list_of(std::move(dqkv));
  }
  return c_attn_.backward(context, std::move(record.child(kAttnRecord)), std::move(dys));
}

Tensor* CausalSelfAttention::do_saved_input(Record& record) { return c_attn_.saved_input(record.child(kAttnRecord)); }

AttentionShape CausalSelfAttention::shape_of(const Tensor& qkv) const {
  return {.batch = qkv.shape()[0], .seq_len = qkv.shape()[1], .heads = heads_, .head_dim = width_ / heads_};
}

}  // namespace mica::nn
