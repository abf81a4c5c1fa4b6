// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "mica/nn/linear.hpp"
#include "mica/nn/rotary.hpp"

namespace mica::nn {

struct GroupedQueryAttentionOptions {
  std::int64_t width = 0;
  std::int64_t heads = 1;
  std::int64_t kv_heads = 1;  ///< divides heads: heads / kv_heads of them share one key and value head
  std::int64_t head_dim = 0;  ///< even
  RotaryOptions rotary;
  double weight_std = 0.02;
};

/// Causal self-attention as in Llama: rotary positions on queries and keys, heads in groups that share keys and values, no
/// biases. x [B, T, width] -> y [B, T, width]; "q_proj.weight" [heads*head_dim, width], "k_proj.weight" and "v_proj.weight"
/// [kv_heads*head_dim, width], "o_proj.weight" [width, heads*head_dim]. A token's position is its index in its sequence. The
/// scores of all heads are never in memory at once.
class GroupedQueryAttention final : public Module {
 public:
  /// @throws ConfigError when kv_heads does not divide heads or head_dim is odd.
  explicit GroupedQueryAttention(const GroupedQueryAttentionOptions& options);

  /// record.saved; queries and keys after their rotation, which is linear: its backward needs no more.
  static constexpr std::size_t kQ = 0, kK = 1, kV = 2;  // [B, T, heads*D], [B, T, kv_heads*D] twice
  static constexpr std::size_t kY = 3;                  // [B, T, heads*D], shared with o_proj's input
  static constexpr std::size_t kLse = 4;                // [B, heads, T] f32

 private:
  Tensors do_forward(Context& context, Tensors xs, Record* record) override;
  Tensors do_backward(Context& context, Record& record, Tensors dys) override;
  Tensor* do_saved_input(Record& record) override;
  [[nodiscard]] AttentionShape shape_of(const Tensor& q) const;
  [[nodiscard]] Tensor rotate(Context& context, const Tensor& x, Turn turn) const;

  std::int64_t heads_, kv_heads_, head_dim_;
  std::vector<double> frequencies_;  // [head_dim / 2]
  std::vector<Module*> qkv_;         // q_proj, k_proj, v_proj
  Linear& o_proj_;
};

}  // namespace mica::nn
