// SPDX-License-Identifier: Apache-2.0
#include "physical_memory.hpp"

#include "mica/device/cuda/check.hpp"

namespace mica::detail {
namespace {

constexpr int kFabric = CU_MEM_HANDLE_TYPE_FABRIC;

void set_handle_types(CUmemAllocationProp& properties, int types) {
  properties.requestedHandleTypes = static_cast<CUmemAllocationHandleType>(types);
}

}  // namespace

PhysicalMemory::PhysicalMemory() : driver_(cuda::Driver::load()), gpu_(cuda::current_gpu()) {
  properties_.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties_.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties_.location.id = gpu_;
  int types = CU_MEM_HANDLE_TYPE_NONE;
  if (supports(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED)) types |= CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  if (supports(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED)) types |= kFabric;
  set_handle_types(properties_, types);
  if (supports(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED)) properties_.allocFlags.gpuDirectRDMACapable = 1;
  std::size_t granularity = 0;
  driver_.check(driver_.mem_get_allocation_granularity(&granularity, &properties_, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
                "cuMemGetAllocationGranularity");
  granularity_ = granularity;
}

bool PhysicalMemory::supports(CUdevice_attribute what) const {
  CUdevice device = 0;
  driver_.check(driver_.device_get(&device, gpu_), "cuDeviceGet");
  int value = 0;
  return driver_.device_get_attribute(&value, what, device) == CUDA_SUCCESS && value != 0;  // an older driver does not know it
}

std::optional<CUmemGenericAllocationHandle> PhysicalMemory::map(std::uintptr_t address, std::uintptr_t bytes) {
  CUmemGenericAllocationHandle handle = 0;
  CUresult made = driver_.mem_create(&handle, bytes, &properties_, 0);
  if ((made == CUDA_ERROR_NOT_PERMITTED || made == CUDA_ERROR_NOT_SUPPORTED) && (properties_.requestedHandleTypes & kFabric) != 0) {
    // The GPU supports fabric handles, but the machine lacks the service that they need.
    set_handle_types(properties_, properties_.requestedHandleTypes & ~kFabric);
    made = driver_.mem_create(&handle, bytes, &properties_, 0);
  }
  if (made == CUDA_ERROR_OUT_OF_MEMORY) return std::nullopt;
  driver_.check(made, "cuMemCreate");
  const CUresult mapped = driver_.mem_map(address, bytes, 0, handle, 0);
  if (mapped != CUDA_SUCCESS) {
    static_cast<void>(driver_.mem_release(handle));
    if (mapped != CUDA_ERROR_OUT_OF_MEMORY) driver_.check(mapped, "cuMemMap");
    return std::nullopt;
  }
  return handle;
}

bool PhysicalMemory::allow(std::uintptr_t begin, std::uintptr_t end) const {
  CUmemAccessDesc access{};
  access.location = properties_.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  const CUresult allowed = driver_.mem_set_access(begin, end - begin, &access, 1);
  if (allowed != CUDA_ERROR_OUT_OF_MEMORY) driver_.check(allowed, "cuMemSetAccess");
  return allowed == CUDA_SUCCESS;
}

void PhysicalMemory::unmap(std::uintptr_t address, std::uintptr_t bytes, CUmemGenericAllocationHandle handle) const {
  static_cast<void>(driver_.mem_unmap(address, bytes));
  static_cast<void>(driver_.mem_release(handle));
}

}  // namespace mica::detail
