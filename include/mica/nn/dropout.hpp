// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "mica/nn/module.hpp"

namespace mica::nn {

/// Sets elements to zero with probability p and scales the others by 1/(1-p), while context.training; the identity otherwise. x
/// [B, ...], row b belongs to sequence context.sequences[b]. Keeps no mask: random numbers depend on (seed, step, global
/// sequence id, name, element) only, so every mesh and every recomputation drops the same elements.
class Dropout final : public Module {
 public:
  /// @param full_name  the random stream; different for each dropout of a model ("transformer.h.3.mlp.dropout").
  /// @throws ConfigError unless 0 <= p < 1.
  Dropout(double p, std::string_view full_name);

 private:
  /// Whether a forward now would return its input.
  [[nodiscard]] bool passes_through(const Context& context) const { return p_ == 0 || !context.training; }
  Tensors do_forward(Context& context, Tensors xs, Record* record) override;
  Tensors do_backward(Context& context, Record& record, Tensors dys) override;
  [[nodiscard]] Tensor drop(Context& context, const Tensor& x, const RandomPoint& point) const;

  double p_;
  std::uint64_t name_hash_;
};

}  // namespace mica::nn
