// SPDX-License-Identifier: Apache-2.0
// Errors, devices and versions of the runtime API.
#include <cstdio>
#include <cstring>

#include <cuda_runtime_api.h>

#include "api.hpp"
#include "queues.hpp"

using namespace mica::cuda_emulation;

namespace {

constexpr int kVersion = 13000;
constexpr int kProcessors = 4;
constexpr int kMajor = 9, kMinor = 0;

cudaError_t check_device(int device) {
  if (device_count() == 0) return failed(cudaErrorNoDevice);
  return device < 0 || device >= device_count() ? failed(cudaErrorInvalidDevice) : cudaSuccess;
}

}  // namespace

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "cudaSuccess";
#define MICA_EMULATED_CASE(name, value, text) \
  case name:                                  \
    return #name;
      MICA_EMULATED_CUDA_ERRORS(MICA_EMULATED_CASE)
#undef MICA_EMULATED_CASE
  }
  return "unrecognized error code";
}

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
#define MICA_EMULATED_CASE(name, value, text) \
  case name:                                  \
    return text;
      MICA_EMULATED_CUDA_ERRORS(MICA_EMULATED_CASE)
#undef MICA_EMULATED_CASE
  }
  return "unrecognized error code";
}

cudaError_t cudaGetLastError(void) {
  const cudaError_t error = last_error();
  forget_error();
  return error;
}
cudaError_t cudaPeekAtLastError(void) { return last_error(); }

cudaError_t cudaGetDeviceCount(int* count) {
  MICA_EMULATED_ENTER(cudaGetDeviceCount);
  *count = device_count();
  return *count == 0 ? failed(cudaErrorNoDevice) : cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  MICA_EMULATED_ENTER(cudaSetDevice);
  if (const auto error = check_device(device); error != cudaSuccess) return error;
  current_device() = device;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  MICA_EMULATED_ENTER(cudaGetDevice);
  if (device_count() == 0) return failed(cudaErrorNoDevice);
  *device = current_device();
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp* prop, int device) {
  MICA_EMULATED_ENTER(cudaGetDeviceProperties);
  if (const auto error = check_device(device); error != cudaSuccess) return error;
  *prop = {};
  std::snprintf(prop->name, sizeof(prop->name), "Emulated GPU");
  std::memset(prop->uuid.bytes, device, sizeof(prop->uuid.bytes));
  prop->totalGlobalMem = static_cast<std::size_t>(memory_bytes());
  prop->sharedMemPerBlock = prop->sharedMemPerMultiprocessor = prop->sharedMemPerBlockOptin = 48 << 10;
  prop->regsPerBlock = 65536;
  prop->warpSize = 32;
  prop->maxThreadsPerBlock = 1024;
  prop->maxThreadsDim[0] = prop->maxThreadsDim[1] = 1024;
  prop->maxThreadsDim[2] = 64;
  prop->maxGridSize[0] = 2147483647;
  prop->maxGridSize[1] = prop->maxGridSize[2] = 65535;
  prop->major = kMajor;
  prop->minor = kMinor;
  prop->multiProcessorCount = kProcessors;
  prop->canMapHostMemory = prop->concurrentKernels = prop->unifiedAddressing = 1;
  prop->pciBusID = device + 1;
  prop->asyncEngineCount = 2;
  prop->memoryBusWidth = 64;
  prop->l2CacheSize = 1 << 20;
  prop->maxThreadsPerMultiProcessor = 2048;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char* pciBusId, int len, int device) {
  MICA_EMULATED_ENTER(cudaDeviceGetPCIBusId);
  if (const auto error = check_device(device); error != cudaSuccess) return error;
  const int needed = std::snprintf(pciBusId, static_cast<std::size_t>(len), "0000:%02x:00.0", device + 1);
  return needed < len ? cudaSuccess : failed(cudaErrorInvalidValue);
}

cudaError_t cudaDeviceGetAttribute(int* value, enum cudaDeviceAttr attr, int device) {
  cudaDeviceProp prop;
  if (const auto error = cudaGetDeviceProperties(&prop, device); error != cudaSuccess) return error;
  switch (attr) {
    case cudaDevAttrMaxThreadsPerBlock:
      *value = prop.maxThreadsPerBlock;
      break;
    case cudaDevAttrMaxGridDimX:
      *value = prop.maxGridSize[0];
      break;
    case cudaDevAttrMaxSharedMemoryPerBlock:
      *value = static_cast<int>(prop.sharedMemPerBlock);
      break;
    case cudaDevAttrWarpSize:
      *value = prop.warpSize;
      break;
    case cudaDevAttrMultiProcessorCount:
      *value = prop.multiProcessorCount;
      break;
    case cudaDevAttrComputeMode:
      *value = cudaComputeModeDefault;
      break;
    case cudaDevAttrConcurrentKernels:
      *value = prop.concurrentKernels;
      break;
    case cudaDevAttrEccEnabled:
      *value = 0;
      break;
    case cudaDevAttrPciBusId:
      *value = prop.pciBusID;
      break;
    case cudaDevAttrPciDeviceId:
      *value = prop.pciDeviceID;
      break;
    case cudaDevAttrL2CacheSize:
      *value = prop.l2CacheSize;
      break;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      *value = prop.maxThreadsPerMultiProcessor;
      break;
    case cudaDevAttrAsyncEngineCount:
      *value = prop.asyncEngineCount;
      break;
    case cudaDevAttrUnifiedAddressing:
      *value = prop.unifiedAddressing;
      break;
    case cudaDevAttrPciDomainId:
      *value = prop.pciDomainID;
      break;
    case cudaDevAttrComputeCapabilityMajor:
      *value = prop.major;
      break;
    case cudaDevAttrComputeCapabilityMinor:
      *value = prop.minor;
      break;
    case cudaDevAttrStreamPrioritiesSupported:
      *value = 1;
      break;
    case cudaDevAttrMemoryPoolsSupported:
      *value = 1;
      break;
    default:
      return failed(cudaErrorInvalidValue);
  }
  return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* leastPriority, int* greatestPriority) {
  MICA_EMULATED_ENTER(cudaDeviceGetStreamPriorityRange);
  if (leastPriority != nullptr) *leastPriority = 0;
  if (greatestPriority != nullptr) *greatestPriority = -5;
  return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* canAccessPeer, int device, int peerDevice) {
  MICA_EMULATED_ENTER(cudaDeviceCanAccessPeer);
  for (const int it : {device, peerDevice}) {
    if (const auto error = check_device(it); error != cudaSuccess) return error;
  }
  *canAccessPeer = device != peerDevice;
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize(void) {
  MICA_EMULATED_ENTER(cudaDeviceSynchronize, .waits());
  if (device_count() == 0) return failed(cudaErrorNoDevice);
  finish_device(current_device(), "cudaDeviceSynchronize");
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* driverVersion) {
  MICA_EMULATED_ENTER(cudaDriverGetVersion);
  *driverVersion = device_count() == 0 ? 0 : kVersion;  // 0: no driver
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* runtimeVersion) {
  MICA_EMULATED_ENTER(cudaRuntimeGetVersion);
  *runtimeVersion = kVersion;
  return cudaSuccess;
}
