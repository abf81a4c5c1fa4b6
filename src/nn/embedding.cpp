// SPDX-License-Identifier: Apache-2.0
#include "mica/nn/embedding.hpp"

#include "mica/nn/input_check.hpp"
#include "mica/nn/key_value_cache.hpp"

namespace mica::nn {

Embedding::Embedding(std::int64_t rows, std::int64_t width, double weight_std)
    : Module("embedding"), width_(width), weight_(add_parameter("weight", {rows, width}, Initializer::normal(weight_std), true)) {}

Tensors Embedding::do_forward(Context& context, Tensors xs, Record* record) { return list_of(look_up(context, xs, nullptr, record)); }

Tensors Embedding::forward_with_positions(Context& context, const Tensors& xs, PositionEmbedding& positions, Record* record,
                                          Record* of_positions) {
  Tensor y = look_up(context, xs, &positions, record);
  if (of_positions) of_positions->input_needs_grad = {y.needs_grad, false};
  positions.keep_ids(of_positions, y.needs_grad, xs[0], y);
  return list_of(std::move(y));
}

Tensor Embedding::look_up(Context& context, const Tensors& xs, PositionEmbedding* positions, Record* record) {
  expect_inputs(*this, xs, 1);
  const Tensor& ids = xs[0];
  expect_ids(*this, ids);
  require<Error>(ids.shape().num_dims() == 2, "an '{}' takes ids of shape [batch, seq_len], got {}", type_name(), ids.shape().to_string());
  const ConstTensorView weight = data_of(weight_);
  Tensor y = context.make({ids.shape()[0], ids.shape()[1], width_}, weight.dtype);
  const bool adds_positions = positions && !context.cache;
  context.kernels.embedding(context.compute, ids, weight, adds_positions ? positions->rows_for(ids) : ConstTensorView(), y);
  if (positions && context.cache) positions->add_cached(context, y, y);
  y.needs_grad = record && weight_.requires_grad;
  if (y.needs_grad) record->saved = {ids};
  return y;
}

Tensors Embedding::do_backward(Context& context, Record& record, Tensors dys) {
  if (!record.saved.empty()) {  // empty: the embedding was frozen in the forward
    if (const GradTarget dweight = weight_.write_grad_in_turns(); dweight.view) {
      context.kernels.embedding_backward(context.compute, dys[0], record.take(0), dweight.view, dweight.mode, {}, Write::overwrite,
                                         dweight.turns);
    }
  }
  return Tensors(1);
}

PositionEmbedding::PositionEmbedding(std::int64_t context, std::int64_t width, double weight_std)
    : Module("position_embedding"),
      context_(context),
      width_(width),
      weight_(add_parameter("weight", {context, width}, Initializer::normal(weight_std), true)) {}

Tensors PositionEmbedding::do_forward(Context& context, Tensors xs, Record* record) {
  expect_inputs(*this, xs, 2);
  const Tensor &x = xs[0], &ids = xs[1];
  const ConstTensorView weight = rows_for(ids);
  expect_activation(*this, x, width_, weight.dtype);
  Tensor y = context.make(x.shape(), x.dtype());
  if (context.cache) {
    add_cached(context, x, y);
  } else {
    const std::int64_t row_numel = ids.shape().back() * width_;
    for (std::int64_t b = 0; b < ids.shape().rows(); ++b) {
      context.kernels.add(context.compute, x.view().slice(b * row_numel, row_numel), weight.slice(0, row_numel),
                          y.view().slice(b * row_numel, row_numel));
    }
  }
  keep_ids(record, x.needs_grad, ids, y);
  return list_of(std::move(y));
}

void PositionEmbedding::add_cached(Context& context, const Tensor& x, const Tensor& y) const {
  expect_in_context(context.cache->longest(), context_);
  const Tensor rows = context.make(x.shape(), x.dtype());
  context.kernels.embedding(context.compute, context.cache->positions(), data_of(weight_), {}, rows);
  context.kernels.add(context.compute, x, rows, y);
}

ConstTensorView PositionEmbedding::rows_for(const Tensor& ids) const {
  expect_in_context(ids.shape().back(), context_);
  return data_of(weight_);
}

void PositionEmbedding::keep_ids(Record* record, bool x_needs_grad, const Tensor& ids, Tensor& y) const {
  y.needs_grad = record && (x_needs_grad || weight_.requires_grad);
  if (record && weight_.requires_grad) record->saved = {ids};
}

Tensors PositionEmbedding::do_backward(Context& context, Record& record, Tensors dys) {
  if (!record.saved.empty()) {
    if (const GradTarget dweight = weight_.write_grad(); dweight.view) {
      context.kernels.embedding_backward(context.compute, dys[0], record.take(0), {}, Write::overwrite, dweight.view, dweight.mode);
    }
  }
  Tensors dxs(2);
  if (record.needs_dx(0)) dxs[0] = dys[0];
  return dxs;
}

}  // namespace mica::nn
