// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <source_location>

#include <cuda.h>

// For CUDA sources only: needs CUDA's headers.
namespace mica::cuda {

/// The driver API calls that Mica uses, loaded at run time: machines without a GPU lack the driver's library, and one binary
/// serves both.
struct Driver {
  decltype(&cuGetErrorName) get_error_name = nullptr;
  decltype(&cuDeviceGet) device_get = nullptr;
  decltype(&cuDeviceGetAttribute) device_get_attribute = nullptr;
  decltype(&cuMemGetAllocationGranularity) mem_get_allocation_granularity = nullptr;
  decltype(&cuMemAddressReserve) mem_address_reserve = nullptr;
  decltype(&cuMemAddressFree) mem_address_free = nullptr;
  decltype(&cuMemCreate) mem_create = nullptr;
  decltype(&cuMemRelease) mem_release = nullptr;
  decltype(&cuMemMap) mem_map = nullptr;
  decltype(&cuMemUnmap) mem_unmap = nullptr;
  decltype(&cuMemSetAccess) mem_set_access = nullptr;
  decltype(&cuStreamWaitValue32) stream_wait_value32 = nullptr;
  decltype(&cuStreamWriteValue32) stream_write_value32 = nullptr;

  /// @throws CudaError: a driver that lacks one of them
  static Driver load();
  /// @throws CudaError with the driver's name of the error
  void check(CUresult result, const char* what, std::source_location where = std::source_location::current()) const;
};

}  // namespace mica::cuda
