#pragma once

#include "mica/nn/module.hpp"

namespace mica::nn {

/// y[..., :] = weight[ids[...], :]. ids i32 [B, T], each in [0, rows) -> y [B, T, width]; "weight" [rows, width].
class Embedding final : public Module {
 public:
  Embedding(std::int64_t rows, std::int64_t width, double weight_std = 0.02);

  [[nodiscard]] Parameter& weight() { return weight_; }

 private:
  Tensors do_forward(Context& context, Tensors xs, Record* record) override;
  Tensors do_backward(Context& context, Record& record, Tensors dys) override;

  std::int64_t width_;
  Parameter& weight_;
};

/// y[b, t, :] = x[b, t, :] + weight[t, :]: learned positions. Inputs {x [B, T, width], ids i32 [B, T]}, T <= context
/// (ids only give the grouping into sequences); "weight" [context, width].
class PositionEmbedding final : public Module {
 public:
  PositionEmbedding(std::int64_t context, std::int64_t width, double weight_std = 0.02);

 private:
  Tensors do_forward(Context& context, Tensors xs, Record* record) override;
  Tensors do_backward(Context& context, Record& record, Tensors dys) override;

  std::int64_t context_, width_;
  Parameter& weight_;
};

}  // namespace mica::nn
