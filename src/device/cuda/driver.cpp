// SPDX-License-Identifier: Apache-2.0
#include "mica/device/cuda/driver.hpp"

#include <string_view>

#include "mica/core/error.hpp"
#include "mica/device/cuda/check.hpp"

namespace mica::cuda {
namespace {

constexpr unsigned kDriverVersion = 12000;  // the version of the signatures used here

template <class Function>
void find(const char* symbol, Function& function) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
  cuda::check(cudaGetDriverEntryPointByVersion(symbol, &found, kDriverVersion, cudaEnableDefault, &result),
              "cudaGetDriverEntryPointByVersion");
  require<CudaError>(found != nullptr && result == cudaDriverEntryPointSuccess,
                     "the GPU's driver has no {}; Mica needs the driver of CUDA 12 or newer", symbol);
  function = reinterpret_cast<Function>(found);
}

}  // namespace

Driver Driver::load() {
  Driver driver;
  find("cuGetErrorName", driver.get_error_name);
  find("cuDeviceGet", driver.device_get);
  find("cuDeviceGetAttribute", driver.device_get_attribute);
  find("cuMemGetAllocationGranularity", driver.mem_get_allocation_granularity);
  find("cuMemAddressReserve", driver.mem_address_reserve);
  find("cuMemAddressFree", driver.mem_address_free);
  find("cuMemCreate", driver.mem_create);
  find("cuMemRelease", driver.mem_release);
  find("cuMemMap", driver.mem_map);
  find("cuMemUnmap", driver.mem_unmap);
  find("cuMemSetAccess", driver.mem_set_access);
  find("cuStreamWaitValue32", driver.stream_wait_value32);
  find("cuStreamWriteValue32", driver.stream_write_value32);
  return driver;
}

void Driver::check(CUresult result, const char* what, std::source_location where) const {
  if (result == CUDA_SUCCESS) return;
  const char* name = nullptr;
  if (get_error_name == nullptr || get_error_name(result, &name) != CUDA_SUCCESS) name = "unknown error";
  const std::string_view path = where.file_name();
  throw CudaError(
      fmt::format("{}: {} ({}) at {}:{}", what, name, static_cast<int>(result), path.substr(path.rfind('/') + 1), where.line()));
}

}  // namespace mica::cuda
