#pragma once

#include <memory>
#include <string>

#include "mica/device/pool.hpp"
#include "mica/tensor/kernels.hpp"

namespace mica::cuda {

/// A library's fused attention. Arguments as those of Kernels::attention, checked before.
class FusedAttention {
 public:
  virtual ~FusedAttention() = default;
  /// "cuDNN 9.19.0"
  [[nodiscard]] virtual std::string description() const = 0;
  /// Enqueues, or returns false where the library has nothing for these arguments.
  [[nodiscard]] virtual bool forward(Stream& s, const AttentionShape& shape, const ConstQkv& in, TensorView y,
                                     TensorView lse) = 0;
  [[nodiscard]] virtual bool backward(Stream& s, const AttentionShape& shape, ConstTensorView dy, const ConstQkv& in,
                                      ConstTensorView y, ConstTensorView lse, const Qkv& d_in) = 0;
};

/// cuDNN's, on the calling thread's GPU; null where this build has no cudnn-frontend. `pool` outlives it.
/// @param deterministic  the same bits at any time, for which the backward takes more memory
[[nodiscard]] std::unique_ptr<FusedAttention> make_cudnn_attention(Pool& pool, bool deterministic);

}  // namespace mica::cuda
