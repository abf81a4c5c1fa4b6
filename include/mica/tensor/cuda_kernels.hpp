#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "mica/tensor/kernels.hpp"

namespace mica {

struct CudaKernelsOptions {
  /// f32 products on tensor cores with 10 bits of mantissa (TF32).
  bool allow_tf32 = false;
  /// False: Mica's own attention even where cuDNN has one (tests).
  bool use_cudnn = true;
  /// True: the same bits from run to run. False: cuDNN may add up attention's gradients, and cuBLASLt the parts of an f32
  /// sum, in any order, which is faster and takes less memory.
  bool reproducible = true;
  /// Products may make more than themselves: the GELU beside them or a residual's sum, which then see numbers before they are
  /// rounded, and the gradient of a bias, for which cuBLASLt may add up the weight's in another order. Bits then depend on how a model is cut
  /// into units (a layer that is one of its own runs apart from its GELU) and on what is wanted beside a product.
  /// MICA_GPU_EPILOGUES=off in the environment: false whatever is said here, to measure what it gains.
  bool fuse_epilogues = false;
  /// head_loss makes f32 logits of bf16 and f16 operands too. False: logits of their dtype, which is half the memory traffic
  /// of a training step's largest matrix; a logit of 10 then errs by 0.03 in bf16, and so does a row's loss.
  bool f32_logits = true;
  /// The most bytes of logits that head_loss holds at a time (a row's at least). [Note: head and loss on a GPU]
  std::int64_t logits_bytes = std::int64_t{1} << 30;
};

/// cuBLASLt for products, cuDNN for attention where it can, own kernels for the rest, on the calling thread's GPU.
/// `pool`: of the same GPU; outlives it. One host thread.
/// @throws ConfigError: this build has no CUDA; no GPU; MICA_GPU_EPILOGUES is something else
[[nodiscard]] std::unique_ptr<Kernels> make_cuda_kernels(Pool& pool, const CudaKernelsOptions& options = {});

/// Something that kernels do more slowly than they would with other arguments or another build. [Note: slow paths]
struct SlowPath {
  std::string kind;    ///< what is done: "attention by own kernels"
  std::string shape;   ///< of what: "forward, B=8 T=1024 H=12 D=64 fp32"
  std::string reason;  ///< why, in a library's words where it has some, and what would change it
};

/// What these kernels enqueued so far that took a slow path, each kind and shape once; only grows. None where they are not a
/// GPU's. For whoever runs the kernels to tell the user. Nothing that an option asked for, nor what is too small to matter.
[[nodiscard]] std::span<const SlowPath> slow_paths(const Kernels& kernels);

/// "9.13.0", or "not built in".
[[nodiscard]] std::string cudnn_version_text();

}  // namespace mica
