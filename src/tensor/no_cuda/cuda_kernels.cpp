// SPDX-License-Identifier: Apache-2.0
// cuda_kernels.hpp in a build without CUDA.
#include "mica/tensor/cuda_kernels.hpp"

#include "mica/core/error.hpp"

namespace mica {

std::unique_ptr<Kernels> make_cuda_kernels(Pool&, const CudaKernelsOptions&) {
  throw ConfigError("GPU kernels were requested, but this build has no CUDA: build Mica where nvcc is installed (preset cuda)");
}
std::span<const SlowPath> slow_paths(const Kernels&) { return {}; }

}  // namespace mica
