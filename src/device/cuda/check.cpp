// SPDX-License-Identifier: Apache-2.0
#include "mica/device/cuda/check.hpp"

#include <string_view>

#include "mica/core/error.hpp"

namespace mica::cuda {

void check(cudaError_t error, const char* what, std::source_location where) {
  if (error == cudaSuccess) return;
  const std::string_view path = where.file_name();
  int gpu = -1;
  if (cudaGetDevice(&gpu) != cudaSuccess) gpu = -1;
  throw CudaError(fmt::format("{}: {} ({}) at {}:{}{}", what, cudaGetErrorString(error), cudaGetErrorName(error),
                              path.substr(path.rfind('/') + 1), where.line(), gpu < 0 ? "" : fmt::format(", GPU {}", gpu)));
}

int current_gpu() {
  int index = 0;
  check(cudaGetDevice(&index), "cudaGetDevice");
  return index;
}

void stay_on(int index) {
  if (current_gpu() != index) check(cudaSetDevice(index), "cudaSetDevice");
}

}  // namespace mica::cuda
