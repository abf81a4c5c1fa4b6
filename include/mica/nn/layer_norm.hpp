// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "mica/nn/norm.hpp"

namespace mica::nn {

/// y = (x - mean) / sqrt(variance + eps) * weight + bias over the last dim. x [..., width]; "weight", "bias" [width].
class LayerNorm final : public Norm {
 public:
  explicit LayerNorm(std::int64_t width, double eps = 1e-5) : Norm("layer_norm", width, eps, /*is_centred=*/true) {}
};

}  // namespace mica::nn
