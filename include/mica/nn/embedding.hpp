// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "mica/nn/module.hpp"

namespace mica::nn {

class PositionEmbedding;

/// y[..., :] = weight[ids[...], :]. ids i32 [B, T], each in [0, rows) -> y [B, T, width]; "weight" [rows, width].
class Embedding final : public Module {
 public:
  Embedding(std::int64_t rows, std::int64_t width, double weight_std = 0.02);

  [[nodiscard]] bool writes_grads_in_turns() const override { return true; }
  [[nodiscard]] Parameter& weight() { return weight_; }
  /// The forward together with that of the positions after it ([Note: fused neighbours] in fused.hpp).
  [[nodiscard]] Tensors forward_with_positions(Context& context, const Tensors& xs, PositionEmbedding& positions, Record* record,
                                               Record* of_positions);

 private:
  Tensors do_forward(Context& context, Tensors xs, Record* record) override;
  Tensors do_backward(Context& context, Record& record, Tensors dys) override;
  /// @param positions  null: none
  Tensor look_up(Context& context, const Tensors& xs, PositionEmbedding* positions, Record* record);

  std::int64_t width_;
  Parameter& weight_;
};

/// y[b, t, :] = x[b, t, :] + weight[t, :]: learned positions. Inputs {x [B, T, width], ids i32 [B, T]}, T <= context
/// (ids only give the grouping into sequences); "weight" [context, width].
class PositionEmbedding final : public Module {
 public:
  PositionEmbedding(std::int64_t context, std::int64_t width, double weight_std = 0.02);

  /// "weight", for an embedding that adds it to its own rows. @throws ConfigError if sequences are longer than the context.
  [[nodiscard]] ConstTensorView rows_for(const Tensor& ids) const;
  /// y = x + the rows of the positions that Context::cache names ([Note: cached forward]). y may be x.
  /// @throws ConfigError if a position is outside the context.
  void add_cached(Context& context, const Tensor& x, const Tensor& y) const;
  /// After a forward on {x, ids} that made y: saves what backward needs, and sets whether y needs a gradient.
  void keep_ids(Record* record, bool x_needs_grad, const Tensor& ids, Tensor& y) const;

 private:
  Tensors do_forward(Context& context, Tensors xs, Record* record) override;
  Tensors do_backward(Context& context, Record& record, Tensors dys) override;

  std::int64_t context_, width_;
  Parameter& weight_;
};

}  // namespace mica::nn
