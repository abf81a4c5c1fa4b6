// SPDX-License-Identifier: Apache-2.0
// gpu.hpp in a build without CUDA.
#include "mica/device/gpu.hpp"

#include "mica/core/error.hpp"

namespace mica {
namespace {
[[noreturn]] void refuse() {
  throw ConfigError(
      "a GPU was requested, but this build has no CUDA: build Mica where nvcc is installed (preset cuda), or use mesh.device=cpu");
}
}  // namespace

bool has_cuda() { return false; }
std::string cuda_version_text() { return "not built in"; }
std::vector<GpuInfo> list_gpus() { return {}; }
std::string why_no_gpu() { return "this build has no CUDA"; }
void use_gpu(int) { refuse(); }
std::int64_t free_gpu_memory() { refuse(); }
std::unique_ptr<Stream> make_cuda_stream(std::string, GpuPriority) { refuse(); }
std::unique_ptr<Pool> make_cuda_pool() { refuse(); }
std::unique_ptr<Pool> make_pinned_pool() { refuse(); }

}  // namespace mica
