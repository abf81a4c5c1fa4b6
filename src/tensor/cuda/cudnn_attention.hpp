// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "mica/device/pool.hpp"
#include "mica/tensor/kernels.hpp"

namespace mica::cuda {

/// For shorter sequences it is not faster.
inline constexpr std::int64_t kFewestFusedTokens = 64;

/// A library's fused attention. Arguments as those of Kernels::attention, checked before.
class FusedAttention {
 public:
  virtual ~FusedAttention() = default;
  /// "cuDNN 9.19.0"
  [[nodiscard]] virtual std::string description() const = 0;
  /// Enqueues and returns nullopt; or enqueues nothing and returns why the library does not support these arguments.
  [[nodiscard]] virtual std::optional<std::string> forward(Stream& s, const AttentionShape& shape, const ConstQkv& in, TensorView y,
                                                           TensorView lse) = 0;
  [[nodiscard]] virtual std::optional<std::string> backward(Stream& s, const AttentionShape& shape, ConstTensorView dy, const ConstQkv& in,
                                                            ConstTensorView y, ConstTensorView lse, const Qkv& d_in) = 0;
};

/// cuDNN's attention on the calling thread's GPU; null if this build has no cudnn-frontend. `pool` outlives it.
/// @param deterministic  the same bits in every run, for which the backward needs more memory
[[nodiscard]] std::unique_ptr<FusedAttention> make_cudnn_attention(Pool& pool, bool deterministic);

/// One call of cuDNN.
struct CudnnPlanRequest {
  AttentionShape shape;
  DType dtype = DType::bf16;
  bool is_packed = true;
  bool is_backward = false;
  bool deterministic = false;
};
/// cuDNN's plan for a call on a GPU that this machine need not have: tests which calls it supports.
/// @param device  the GPU's properties, in cuDNN's CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION
/// @return bytes of workspace; nullopt: there is no plan, and `why_not` has the reason
[[nodiscard]] std::optional<std::int64_t> plan_cudnn_attention(const std::string& device, const CudnnPlanRequest& request,
                                                               std::string& why_not);

}  // namespace mica::cuda
