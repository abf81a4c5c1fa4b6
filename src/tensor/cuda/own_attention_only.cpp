// SPDX-License-Identifier: Apache-2.0
#include "cudnn_attention.hpp"

// For builds without cudnn-frontend, in place of cudnn_attention.cpp.
namespace mica::cuda {

std::unique_ptr<FusedAttention> make_cudnn_attention(Pool& /*pool*/, bool /*deterministic*/) { return nullptr; }

}  // namespace mica::cuda
