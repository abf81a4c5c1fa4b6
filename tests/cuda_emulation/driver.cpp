// SPDX-License-Identifier: Apache-2.0
// The driver API: names, virtual memory, waiting for a word, and how the runtime API finds all this.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "api.hpp"
#include "memory.hpp"
#include "streams.hpp"

using namespace mica::cuda_emulation;

namespace {

Memory& memory() { return Memory::instance(); }
CUresult result(bool ok) { return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE; }

#define MICA_EMULATED_ENTER_DRIVER(name)                                                      \
  do {                                                                                        \
    static auto& api = Api::named(#name);                                                     \
    if (const int ordered = api.enter(); ordered != 0) return static_cast<CUresult>(ordered); \
    if (in_host_function()) return CUDA_ERROR_NOT_PERMITTED;                                  \
    if (device_count() == 0) return CUDA_ERROR_NO_DEVICE;                                     \
  } while (false)

bool is_device_place(const CUmemAllocationProp* prop) {
  return prop != nullptr && prop->type == CU_MEM_ALLOCATION_TYPE_PINNED && prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
         prop->location.id >= 0 && prop->location.id < device_count();
}

constexpr auto kDeadline = std::chrono::seconds(60);

bool is_reached(std::uint32_t seen, std::uint32_t value, unsigned flags) {
  switch (flags & ~static_cast<unsigned>(CU_STREAM_WAIT_VALUE_FLUSH)) {
    case CU_STREAM_WAIT_VALUE_EQ:
      return seen == value;
    case CU_STREAM_WAIT_VALUE_AND:
      return (seen & value) != 0;
    case CU_STREAM_WAIT_VALUE_NOR:
      return ~(seen | value) != 0;
    default:
      return static_cast<std::int32_t>(seen - value) >= 0;
  }
}

/// The word that a stream waits for or writes: of the device, or page-locked.
std::uint32_t* word(CUdeviceptr address) {
  auto* pointer = reinterpret_cast<std::uint32_t*>(address);
  const auto found = memory().find(pointer, sizeof(std::uint32_t));
  return address % sizeof(std::uint32_t) == 0 && found.place != Place::pageable && found.whole ? pointer : nullptr;
}

cudaError_t find_entry(const char* symbol, void** function, enum cudaDriverEntryPointQueryResult* status) {
  struct Entry {
    const char* name;
    void* function;
  };
  static const Entry entries[] = {
#define MICA_EMULATED_ENTRY(name) {#name, reinterpret_cast<void*>(&name)}
      MICA_EMULATED_ENTRY(cuGetErrorName),
      MICA_EMULATED_ENTRY(cuGetErrorString),
      MICA_EMULATED_ENTRY(cuInit),
      MICA_EMULATED_ENTRY(cuDeviceGet),
      MICA_EMULATED_ENTRY(cuDeviceGetAttribute),
      MICA_EMULATED_ENTRY(cuMemGetAllocationGranularity),
      MICA_EMULATED_ENTRY(cuMemAddressReserve),
      MICA_EMULATED_ENTRY(cuMemAddressFree),
      MICA_EMULATED_ENTRY(cuMemCreate),
      MICA_EMULATED_ENTRY(cuMemRelease),
      MICA_EMULATED_ENTRY(cuMemMap),
      MICA_EMULATED_ENTRY(cuMemUnmap),
      MICA_EMULATED_ENTRY(cuMemSetAccess),
      MICA_EMULATED_ENTRY(cuStreamWaitValue32),
      MICA_EMULATED_ENTRY(cuStreamWriteValue32),
#undef MICA_EMULATED_ENTRY
  };
  *function = nullptr;
  for (const auto& entry : entries) {
    if (std::strcmp(entry.name, symbol) == 0) *function = entry.function;
  }
  const bool is_found = *function != nullptr;
  if (status != nullptr) *status = is_found ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return is_found || status != nullptr ? cudaSuccess : failed(cudaErrorSymbolNotFound);
}

}  // namespace

CUresult cuGetErrorName(CUresult error, const char** pStr) {
  switch (error) {
    case CUDA_SUCCESS:
      *pStr = "CUDA_SUCCESS";
      return CUDA_SUCCESS;
#define MICA_EMULATED_CASE(name, value, text) \
  case name:                                  \
    *pStr = #name;                            \
    return CUDA_SUCCESS;
      MICA_EMULATED_DRIVER_ERRORS(MICA_EMULATED_CASE)
#undef MICA_EMULATED_CASE
  }
  *pStr = nullptr;
  return CUDA_ERROR_INVALID_VALUE;
}
CUresult cuGetErrorString(CUresult error, const char** pStr) {
  *pStr = cudaGetErrorString(static_cast<cudaError_t>(error));
  return CUDA_SUCCESS;
}
CUresult cuInit(unsigned int) { return device_count() == 0 ? CUDA_ERROR_NO_DEVICE : CUDA_SUCCESS; }
CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  if (ordinal < 0 || ordinal >= device_count()) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}
/// A GPU that can share its memory in every way, in a machine without the service that fabric handles need.
CUresult cuDeviceGetAttribute(int* pi, CUdevice_attribute attrib, CUdevice dev) {
  if (dev < 0 || dev >= device_count()) return CUDA_ERROR_INVALID_DEVICE;
  switch (attrib) {
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED:
      *pi = 1;
      return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemGetAllocationGranularity(std::size_t* granularity, const CUmemAllocationProp* prop, CUmemAllocationGranularity_flags) {
  MICA_EMULATED_ENTER_DRIVER(cuMemGetAllocationGranularity);
  *granularity = kGranularity;
  return result(is_device_place(prop));
}
CUresult cuMemAddressReserve(CUdeviceptr* ptr, std::size_t size, std::size_t alignment, CUdeviceptr addr, unsigned long long flags) {
  MICA_EMULATED_ENTER_DRIVER(cuMemAddressReserve);
  if (flags != 0 || addr != 0 || (alignment & (alignment - 1)) != 0) return CUDA_ERROR_INVALID_VALUE;
  *ptr = memory().reserve(size, alignment);
  return result(*ptr != 0);
}
CUresult cuMemAddressFree(CUdeviceptr ptr, std::size_t size) {
  MICA_EMULATED_ENTER_DRIVER(cuMemAddressFree);
  return result(memory().unreserve(ptr, size));
}
CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, std::size_t size, const CUmemAllocationProp* prop, unsigned long long flags) {
  MICA_EMULATED_ENTER_DRIVER(cuMemCreate);
  if (flags != 0 || !is_device_place(prop) || size == 0 || size % kGranularity != 0) return CUDA_ERROR_INVALID_VALUE;
  const int types = prop->requestedHandleTypes;
  if ((types & ~(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR | CU_MEM_HANDLE_TYPE_FABRIC)) != 0) return CUDA_ERROR_INVALID_VALUE;
  if ((types & CU_MEM_HANDLE_TYPE_FABRIC) != 0) return CUDA_ERROR_NOT_PERMITTED;
  *handle = memory().create(size, prop->location.id, types != 0 && prop->allocFlags.gpuDirectRDMACapable != 0);
  return *handle == 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}
CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  MICA_EMULATED_ENTER_DRIVER(cuMemRelease);
  return result(memory().release(handle));
}
CUresult cuMemMap(CUdeviceptr ptr, std::size_t size, std::size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags) {
  MICA_EMULATED_ENTER_DRIVER(cuMemMap);
  return result(flags == 0 && offset == 0 && memory().map(ptr, size, handle));
}
CUresult cuMemUnmap(CUdeviceptr ptr, std::size_t size) {
  MICA_EMULATED_ENTER_DRIVER(cuMemUnmap);
  return result(memory().unmap(ptr, size));
}
CUresult cuMemSetAccess(CUdeviceptr ptr, std::size_t size, const CUmemAccessDesc* desc, std::size_t count) {
  MICA_EMULATED_ENTER_DRIVER(cuMemSetAccess);
  for (std::size_t i = 0; i < count; ++i) {
    if (desc[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
    const bool accessible = desc[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    if (!memory().set_access(ptr, size, desc[i].location.id, accessible)) return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

CUresult cuStreamWaitValue32(CUstream stream, CUdeviceptr addr, cuuint32_t value, unsigned int flags) {
  MICA_EMULATED_ENTER_DRIVER(cuStreamWaitValue32);
  if (!is_stream(stream)) return CUDA_ERROR_INVALID_HANDLE;
  std::uint32_t* at = word(addr);
  if (at == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto deadline = std::chrono::steady_clock::now() + kDeadline;
  enqueue(queue_of(stream), [=] {
    const DeviceWork work;
    const std::uint32_t seen = std::atomic_ref<std::uint32_t>(*at).load(std::memory_order_acquire);
    if (is_reached(seen, value, flags)) return Progress::done;
    if (std::chrono::steady_clock::now() > deadline) {
      std::fprintf(stderr, "CUDA emulation: cuStreamWaitValue32 waited 60 s for %u (flags %u) at %#llx, which is %u\n", value, flags, addr,
                   seen);
      std::abort();
    }
    return Progress::waits;
  });
  return CUDA_SUCCESS;
}
CUresult cuStreamWriteValue32(CUstream stream, CUdeviceptr addr, cuuint32_t value, unsigned int) {
  MICA_EMULATED_ENTER_DRIVER(cuStreamWriteValue32);
  if (!is_stream(stream)) return CUDA_ERROR_INVALID_HANDLE;
  std::uint32_t* at = word(addr);
  if (at == nullptr) return CUDA_ERROR_INVALID_VALUE;
  enqueue_action(stream, [at, value] {
    const DeviceWork work;
    std::atomic_ref<std::uint32_t>(*at).store(value, std::memory_order_release);
  });
  return CUDA_SUCCESS;
}

cudaError_t cudaGetDriverEntryPoint(const char* symbol, void** funcPtr, unsigned long long,
                                    enum cudaDriverEntryPointQueryResult* driverStatus) {
  return find_entry(symbol, funcPtr, driverStatus);
}
cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** funcPtr, unsigned int, unsigned long long,
                                             enum cudaDriverEntryPointQueryResult* driverStatus) {
  return find_entry(symbol, funcPtr, driverStatus);
}
