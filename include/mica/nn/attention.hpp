// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "mica/nn/dropout.hpp"
#include "mica/nn/linear.hpp"

namespace mica::nn {

struct AttentionOptions {
  std::int64_t width = 0;
  std::int64_t heads = 1;                           ///< divides width
  double proj_std = 0.02;                           ///< of c_proj's initial weight
  double dropout = 0;                               ///< on the output of c_proj
  std::string dropout_name = "attn.resid_dropout";  ///< random stream of the dropout, different for each layer
};

/// Causal multi-head self-attention as in GPT-2: c_attn [3*width, width] makes q, k and v, c_proj [width, width] the output. x
/// [B, T, width] -> y [B, T, width]. The scores of all heads are never in memory at once.
class CausalSelfAttention final : public Module {
 public:
  /// @throws ConfigError unless heads divides width.
  explicit CausalSelfAttention(const AttentionOptions& options);

  /// record.saved
  static constexpr std::size_t kQkv = 0;  // [B, T, 3*width]
  static constexpr std::size_t kY = 1;    // [B, T, width], shared with c_proj's input
  static constexpr std::size_t kLse = 2;  // [B, heads, T] f32

 private:
  Tensors do_forward(Context& context, Tensors xs, Record* record) override;
  Tensors do_backward(Context& context, Record& record, Tensors dys) override;
  Tensor* do_saved_input(Record& record) override;
  [[nodiscard]] AttentionShape shape_of(const Tensor& qkv) const;

  std::int64_t width_, heads_;
  Linear& c_attn_;
  Linear& c_proj_;
  Dropout& resid_dropout_;
};

}  // namespace mica::nn
