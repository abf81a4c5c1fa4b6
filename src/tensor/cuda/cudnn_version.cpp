// SPDX-License-Identifier: Apache-2.0
#include <cudnn.h>
#include <fmt/format.h>

#include "mica/tensor/cuda_kernels.hpp"

namespace mica {

std::string cudnn_version_text() {
  const std::size_t version = cudnnGetVersion();
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

}  // namespace mica
