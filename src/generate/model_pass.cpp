// SPDX-License-Identifier: Apache-2.0
#include "mica/generate/model_pass.hpp"

#include <utility>

#include "mica/tensor/fetch.hpp"

namespace mica::generate {
namespace {

/// A view of the host's vector, without a copy: the host waits for each pass.
Tensor borrowed(std::vector<std::int32_t>& ids, std::int64_t rows) {
  return Tensor(TensorView(ids.data(), {rows, rows == 0 ? 1 : std::ssize(ids) / rows}, DType::i32));
}

}  // namespace

ModelPass::ModelPass(nn::Module& model, nn::Context& context, std::int64_t slots, std::int64_t capacity)
    : model_(model), context_(context), cache_(slots, capacity) {
  context_.training = false;
}

std::span<const float> ModelPass::logits(std::vector<CachedRow> rows, std::vector<std::int32_t> ids, nn::KeyValueCache::Logits which) {
  const auto num_rows = std::ssize(rows);
  const Tensor tokens = borrowed(ids, num_rows);
  cache_.begin(std::move(rows), tokens.shape()[1], which);
  const nn::ScopedValue continued(context_.cache, &cache_);
  result_ = Tensor();
  result_ = std::move(model_.forward(context_, nn::list_of(tokens), nullptr).at(0));
  context_.compute.synchronize();
  return {static_cast<const float*>(result_.view().data), static_cast<std::size_t>(result_.numel())};
}

double ModelPass::loss(std::vector<std::int32_t> ids, std::vector<std::int32_t> targets) {
  const Tensor loss = model_.forward(context_, nn::Tensors{borrowed(ids, 1), borrowed(targets, 1)}, nullptr).at(0);
  const auto mean = static_cast<double>(fetch_scalar(context_.kernels, context_.compute, loss));
  return mean * static_cast<double>(ids.size());  // the head divides by all rows
}

void ModelPass::idle() { (void)logits({}, {}, nn::KeyValueCache::Logits::last); }

}  // namespace mica::generate
