// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "mica/nn/norm.hpp"

namespace mica::nn {

/// y = x / sqrt(mean(x^2) + eps) * weight over the last dim. x [..., width]; "weight" [width].
class RmsNorm final : public Norm {
 public:
  explicit RmsNorm(std::int64_t width, double eps = 1e-5) : Norm("rms_norm", width, eps, /*is_centred=*/false) {}
};

}  // namespace mica::nn
