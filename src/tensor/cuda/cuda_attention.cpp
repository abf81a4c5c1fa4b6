// SPDX-License-Identifier: Apache-2.0
#include <optional>

#include <fmt/format.h>

#include "../attention_arguments.hpp"
#include "attention.hpp"
#include "cuda_kernels.hpp"
#include "cudnn_attention.hpp"

namespace mica::cuda {

namespace {

std::optional<std::string> not_built_in() {
  return "this build has no cudnn-frontend; scripts/cudnn-frontend.sh installs it for the next configuration";
}

}  // namespace

void CudaKernels::note_own_attention(const AttentionShape& shape, DType dtype, bool is_backward, const std::string& why) {
  if (shape.batch * shape.seq_len * shape.seq_len * shape.q_width() < kFewestMultiplyAdds) return;
  slow_paths_.note(
      "attention by Mica's own kernels",
      {is_backward, shape.batch, shape.seq_len, shape.heads, shape.head_dim, shape.num_kv_heads(), static_cast<std::int64_t>(dtype)}, [&] {
        const std::string heads =
            shape.group() == 1 ? fmt::format("H={}", shape.heads) : fmt::format("H={}/{}", shape.heads, shape.num_kv_heads());
        return std::pair(fmt::format("{}, B={} T={} {} D={} {}", is_backward ? "backward" : "forward", shape.batch, shape.seq_len, heads,
                                     shape.head_dim, dtype_name(dtype)),
                         why);
      });
}

void CudaKernels::attention(Stream& s, const AttentionShape& shape, const ConstQkv& in, TensorView y, TensorView lse) {
  arguments::expect_attention(shape, in, y, lse);
  if (y.numel() == 0) return;
  if (options_.use_cudnn && shape.seq_len >= kFewestFusedTokens) {
    const std::optional<std::string> why_not = fused_attention_ ? fused_attention_->forward(s, shape, in, y, lse) : not_built_in();
    if (!why_not) return;
    note_own_attention(shape, in.q.dtype, false, *why_not);
  }
  own_attention(s, shape, in, y, lse);
}

void CudaKernels::attention_backward(Stream& s, const AttentionShape& shape, ConstTensorView dy, const ConstQkv& in, ConstTensorView y,
                                     ConstTensorView lse, const Qkv& d_in) {
  arguments::expect_attention_backward(shape, dy, in, y, lse, d_in);
  if (y.numel() == 0) return;
  if (options_.use_cudnn && shape.seq_len >= kFewestFusedTokens) {
    const std::optional<std::string> why_not =
        fused_attention_ ? fused_attention_->backward(s, shape, dy, in, y, lse, d_in) : not_built_in();
    if (!why_not) return;
    note_own_attention(shape, in.q.dtype, true, *why_not);
  }
  own_attention_backward(s, pool_, shape, dy, in, y, lse, d_in);
}

void CudaKernels::attention_cached(Stream&, const AttentionShape&, const ConstQkv&, std::span<const double>, const AttentionCache&,
                                   std::span<const CachedRow>, TensorView) {
  throw Error("attention over cached keys and values runs on the CPU only: generate with a model in host memory");
}

}  // namespace mica::cuda
