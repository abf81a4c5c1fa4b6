#include "../attention_arguments.hpp"
#include "attention.hpp"
#include "cuda_kernels.hpp"
#include "cudnn_attention.hpp"

namespace mica::cuda {

void CudaKernels::attention(Stream& s, const AttentionShape& shape, const ConstQkv& in, TensorView y, TensorView lse) {
  arguments::expect_attention(shape, in, y, lse);
  if (y.numel() == 0) return;
  if (fused_attention_ && fused_attention_->forward(s, shape, in, y, lse)) return;
  own_attention(s, shape, in, y, lse);
}

void CudaKernels::attention_backward(Stream& s, const AttentionShape& shape, ConstTensorView dy, const ConstQkv& in,
                                     ConstTensorView y, ConstTensorView lse, const Qkv& d_in) {
  arguments::expect_attention_backward(shape, dy, in, y, lse, d_in);
  if (y.numel() == 0) return;
  if (fused_attention_ && fused_attention_->backward(s, shape, dy, in, y, lse, d_in)) return;
  own_attention_backward(s, pool_, shape, dy, in, y, lse, d_in);
}

}  // namespace mica::cuda
