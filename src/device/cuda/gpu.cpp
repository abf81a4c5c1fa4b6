// SPDX-License-Identifier: Apache-2.0
#include "mica/device/gpu.hpp"

#include <array>

#include "mica/core/error.hpp"
#include "mica/device/cuda/check.hpp"

namespace mica {
namespace {

/// Number of visible GPUs, and the runtime's status.
struct Count {
  int gpus = 0;
  cudaError_t error = cudaSuccess;
};
Count count_gpus() {
  Count count;
  count.error = cudaGetDeviceCount(&count.gpus);
  if (count.error == cudaSuccess) return count;
  static_cast<void>(cudaGetLastError());  // clears the error: having no GPU must not be reported by a later call
  count.gpus = 0;
  return count;
}

std::string version_text(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

}  // namespace

bool has_cuda() { return true; }

std::string cuda_version_text() {
  int runtime = 0, driver = 0;
  static_cast<void>(cudaRuntimeGetVersion(&runtime));
  static_cast<void>(cudaDriverGetVersion(&driver));
  return fmt::format("{}, driver {}", version_text(runtime), driver == 0 ? "none" : "for CUDA " + version_text(driver));
}

std::vector<GpuInfo> list_gpus() {
  std::vector<GpuInfo> gpus;
  for (int i = 0; i < count_gpus().gpus; ++i) {
    cudaDeviceProp properties{};
    cuda::check(cudaGetDeviceProperties(&properties, i), "cudaGetDeviceProperties");
    std::array<char, 32> bus_id{};
    cuda::check(cudaDeviceGetPCIBusId(bus_id.data(), static_cast<int>(bus_id.size()), i), "cudaDeviceGetPCIBusId");
    GpuInfo gpu;
    gpu.index = i;
    gpu.name = properties.name;
    gpu.pci_bus_id = bus_id.data();
    gpu.compute_major = properties.major;
    gpu.compute_minor = properties.minor;
    gpu.memory_bytes = static_cast<std::int64_t>(properties.totalGlobalMem);
    cuda::check(cudaDriverGetVersion(&gpu.driver_version), "cudaDriverGetVersion");
    gpus.push_back(std::move(gpu));
  }
  return gpus;
}

std::string why_no_gpu() {
  const Count count = count_gpus();
  if (count.error != cudaSuccess) return fmt::format("{} ({})", cudaGetErrorString(count.error), cudaGetErrorName(count.error));
  return count.gpus == 0 ? "the driver shows none; is CUDA_VISIBLE_DEVICES empty?" : "";
}

void use_gpu(int index) {
  const int gpus = count_gpus().gpus;
  require<ConfigError>(gpus > 0, "no GPU can be used: {}", why_no_gpu());
  require<ConfigError>(index >= 0 && index < gpus,
                       "GPU {} was requested; expected 0 to {}, the ones that this process may see (CUDA_VISIBLE_DEVICES)", index,
                       gpus - 1);
  cuda::check(cudaSetDevice(index), "cudaSetDevice");
}

std::int64_t free_gpu_memory() {
  std::size_t free = 0, total = 0;
  cuda::check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return static_cast<std::int64_t>(free);
}

}  // namespace mica
