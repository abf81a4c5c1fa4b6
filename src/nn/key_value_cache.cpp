// SPDX-License-Identifier: Apache-2.0
#include "mica/nn/key_value_cache.hpp"

#include <algorithm>
#include <utility>

namespace mica::nn {

void KeyValueCache::begin(std::vector<CachedRow> rows, std::int64_t seq_len, Logits logits) {
  rows_ = std::move(rows);
  seq_len_ = seq_len;
  logits_ = logits;
  positions_.clear();
  for (const CachedRow& row : rows_) {
    require<Error>(row.past + seq_len <= capacity_, "{} tokens behind {} do not fit a cache for {}", seq_len, row.past, capacity_);
    for (std::int64_t t = 0; t < seq_len; ++t) positions_.push_back(static_cast<std::int32_t>(row.past + t));
  }
}

std::int64_t KeyValueCache::longest() const {
  std::int64_t past = -seq_len_;
  for (const CachedRow& row : rows_) past = std::max(past, row.past);
  return past + seq_len_;
}

Tensor KeyValueCache::positions() const {
  // Read only; a Tensor has no const view.
  return Tensor(TensorView(const_cast<std::int32_t*>(positions_.data()), {std::ssize(rows_), seq_len_}, DType::i32));
}

AttentionCache KeyValueCache::of(const Module& layer, const Context& context, std::int64_t width, DType dtype) {
  const auto [found, is_new] = layers_.try_emplace(&layer);
  Layer& its = found->second;
  const Shape shape{slots_, capacity_, width};
  if (is_new) its = {context.make(shape, dtype), context.make(shape, dtype)};
  require<Error>(its.keys.shape() == shape && its.keys.dtype() == dtype,
                 "a '{}' keeps keys of {} {}, but now makes {} {}: use a cache for one model in one dtype", layer.type_name(),
                 its.keys.shape().to_string(), dtype_name(its.keys.dtype()), shape.to_string(), dtype_name(dtype));
  return {its.keys, its.values};
}

}  // namespace mica::nn
