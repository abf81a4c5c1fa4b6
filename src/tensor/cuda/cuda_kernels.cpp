// SPDX-License-Identifier: Apache-2.0
#include "cuda_kernels.hpp"

#include <cstdlib>
#include <string_view>

#include <fmt/format.h>

#include "mica/device/gpu.hpp"

#include "cudnn_attention.hpp"
#include "products.hpp"

namespace mica::cuda {

namespace {

bool epilogues_are_off() {
  const char* wanted = std::getenv("MICA_GPU_EPILOGUES");
  const std::string_view kind = wanted == nullptr ? "" : wanted;
  require<ConfigError>(kind.empty() || kind == "on" || kind == "off",
                       "MICA_GPU_EPILOGUES={}: expected on, or off to run GELUs as kernels of their own", kind);
  return kind == "off";
}

CudaKernelsOptions with_environment(CudaKernelsOptions options) {
  options.fuse_epilogues = !epilogues_are_off() && options.fuse_epilogues;
  return options;
}

}  // namespace

CudaKernels::CudaKernels(Pool& pool, const CudaKernelsOptions& options)
    : pool_(pool),
      options_(with_environment(options)),
      products_(std::make_unique<Products>(options)),
      fused_attention_(options.use_cudnn ? make_cudnn_attention(pool, options.reproducible) : nullptr) {}

CudaKernels::~CudaKernels() = default;

std::string CudaKernels::description() const {
  int index = 0;
  check(cudaGetDevice(&index), "cudaGetDevice");
  const GpuInfo gpu = list_gpus().at(static_cast<std::size_t>(index));
  return fmt::format("cuda ({}, compute capability {}.{}, {}{}, attention by {})", gpu.name, gpu.compute_major, gpu.compute_minor,
                     Products::library_description(),
                     options_.fuse_epilogues ? ""
                     : epilogues_are_off()   ? " without epilogues (MICA_GPU_EPILOGUES=off)"
                                             : " without epilogues",
                     fused_attention_ ? fused_attention_->description() + " where it can" : "own kernels");
}

}  // namespace mica::cuda

namespace mica {

std::unique_ptr<Kernels> make_cuda_kernels(Pool& pool, const CudaKernelsOptions& options) {
  require<ConfigError>(!list_gpus().empty(), "GPU kernels were requested, but {}", why_no_gpu());
  return std::make_unique<cuda::CudaKernels>(pool, options);
}

std::span<const SlowPath> slow_paths(const Kernels& kernels) {
  const auto* on_gpu = dynamic_cast<const cuda::CudaKernels*>(&kernels);
  return on_gpu ? on_gpu->slow_paths() : std::span<const SlowPath>();
}

}  // namespace mica
