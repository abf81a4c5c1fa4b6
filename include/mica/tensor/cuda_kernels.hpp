// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "mica/tensor/kernels.hpp"

namespace mica {

struct CudaKernelsOptions {
  /// f32 products in TF32 (10 bits of mantissa) on tensor cores.
  bool allow_tf32 = false;
  /// False: Mica's own attention even where cuDNN could run it (tests).
  bool use_cudnn = true;
  /// True: bitwise repeatable. False: cuDNN may add up attention gradients, and cuBLASLt the parts of f32 products, in any
  /// order, which is faster and takes less memory.
  bool reproducible = true;
  /// 16-bit products may be fused with a neighbouring GELU, which then reads unrounded results. Bits then depend on how a model is cut into
  /// units: a layer that is a unit of its own is not fused with its GELU.
  /// MICA_GPU_EPILOGUES=off in the environment overrides this with false, to measure what fusing gains.
  bool fuse_epilogues = false;
  /// head_loss computes f32 logits from bf16 and f16 operands too. False: logits in the operands' dtype, which halves the memory
  /// traffic of a training step's largest matrix; a bf16 logit of 10 is then off by up to 0.03, and so is a row's loss.
  bool f32_logits = true;
  /// Most bytes of logits that head_loss holds at a time (at least one row). [Note: head and loss on a GPU]
  std::int64_t logits_bytes = std::int64_t{1} << 30;
};

/// Kernels of the calling thread's GPU, for one host thread: cuBLASLt for products, cuDNN for attention where it supports the
/// shape, Mica's own kernels for the rest. @param pool  of the same GPU; outlives the kernels.
/// @throws ConfigError: no CUDA in this build; no GPU; MICA_GPU_EPILOGUES is neither on nor off
[[nodiscard]] std::unique_ptr<Kernels> make_cuda_kernels(Pool& pool, const CudaKernelsOptions& options = {});

/// An operation that runs more slowly than it would with other arguments or in another build. [Note: slow paths]
struct SlowPath {
  std::string kind;    ///< what is done: "attention by Mica's own kernels"
  std::string shape;   ///< for which shape: "forward, B=8 T=1024 H=12 D=64 fp32"
  std::string reason;  ///< why, in the library's words if it gives any, and what would avoid it
};

/// The slow paths that these kernels have taken so far, each kind and shape once; only grows. Empty for CPU kernels. Whoever
/// runs the kernels tells the user. Omits slow paths that an option asked for, and operations too small to matter.
[[nodiscard]] std::span<const SlowPath> slow_paths(const Kernels& kernels);

/// "9.13.0", or "not built in".
[[nodiscard]] std::string cudnn_version_text();

}  // namespace mica
