#include "cuda_kernels.hpp"

#include <fmt/format.h>

#include "mica/device/gpu.hpp"

#include "cudnn_attention.hpp"
#include "products.hpp"

namespace mica::cuda {

CudaKernels::CudaKernels(Pool& pool, const CudaKernelsOptions& options)
    : pool_(pool),
      options_(options),
      products_(std::make_unique<Products>(options.allow_tf32)),
      fused_attention_(options.use_cudnn ? make_cudnn_attention(pool, options.reproducible) : nullptr) {}

CudaKernels::~CudaKernels() = default;

std::string CudaKernels::description() const {
  int index = 0;
  check(cudaGetDevice(&index), "cudaGetDevice");
  const GpuInfo gpu = list_gpus().at(static_cast<std::size_t>(index));
  return fmt::format("cuda ({}, compute capability {}.{}, {}, attention by {})", gpu.name, gpu.compute_major,
                     gpu.compute_minor, Products::library_description(),
                     fused_attention_ ? fused_attention_->description() + " where it can" : "own kernels");
}

}  // namespace mica::cuda

namespace mica {

std::unique_ptr<Kernels> make_cuda_kernels(Pool& pool, const CudaKernelsOptions& options) {
  require<ConfigError>(!list_gpus().empty(), "a GPU's kernels are asked for, but {}", why_no_gpu());
  return std::make_unique<cuda::CudaKernels>(pool, options);
}

}  // namespace mica
