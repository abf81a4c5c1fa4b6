// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "mica/nn/embedding.hpp"
#include "mica/nn/head_loss.hpp"
#include "mica/nn/supervised_model.hpp"

namespace mica::nn {

/// A SupervisedModel of tokens: its body goes from token ids to hidden states [B, T, width], its head is a HeadLoss. Base
/// of the models here and of users' own.
///   {ids i32 [B, T], targets i32 [B, T]} -> {loss [1] f32}
///   {ids}                                -> {logits [B*T, vocab] f32}, no gradient
/// With Context::cache the second continues sequences ([Note: cached forward] in key_value_cache.hpp).
class LanguageModel : public SupervisedModel {
 public:
  using SupervisedModel::SupervisedModel;

  /// @param args  of HeadLoss: vocab_size and width, or the weight of an embedding to tie it to.
  template <class M = HeadLoss, class... Args>
  M& set_head(std::string name, Args&&... args) {
    return SupervisedModel::set_head<M>(std::move(name), std::forward<Args>(args)...);
  }

 protected:
  Tensors do_forward(Context& context, Tensors xs, Record* record) override;
};

}  // namespace mica::nn
