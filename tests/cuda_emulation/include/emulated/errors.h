// SPDX-License-Identifier: Apache-2.0
#pragma once

// The errors of CUDA that the emulation and its tests name: X(name, value, text).
#define MICA_EMULATED_CUDA_ERRORS(X)                                                                          \
  X(cudaErrorInvalidValue, 1, "invalid argument")                                                             \
  X(cudaErrorMemoryAllocation, 2, "out of memory")                                                            \
  X(cudaErrorInitializationError, 3, "initialization error")                                                  \
  X(cudaErrorCudartUnloading, 4, "driver shutting down")                                                      \
  X(cudaErrorInvalidConfiguration, 9, "invalid configuration argument")                                       \
  X(cudaErrorInvalidPitchValue, 12, "invalid pitch argument")                                                 \
  X(cudaErrorInvalidSymbol, 13, "invalid device symbol")                                                      \
  X(cudaErrorInvalidHostPointer, 16, "invalid host pointer")                                                  \
  X(cudaErrorInvalidDevicePointer, 17, "invalid device pointer")                                              \
  X(cudaErrorInvalidMemcpyDirection, 21, "invalid copy direction for memcpy")                                 \
  X(cudaErrorStubLibrary, 34, "CUDA driver is a stub library")                                                \
  X(cudaErrorInsufficientDriver, 35, "CUDA driver version is insufficient for CUDA runtime version")          \
  X(cudaErrorDevicesUnavailable, 46, "CUDA-capable device(s) is/are busy or unavailable")                     \
  X(cudaErrorInvalidDeviceFunction, 98, "invalid device function")                                            \
  X(cudaErrorNoDevice, 100, "no CUDA-capable device is detected")                                             \
  X(cudaErrorInvalidDevice, 101, "invalid device ordinal")                                                    \
  X(cudaErrorDeviceUninitialized, 201, "invalid device context")                                              \
  X(cudaErrorNoKernelImageForDevice, 209, "no kernel image is available for execution on the device")         \
  X(cudaErrorECCUncorrectable, 214, "uncorrectable ECC error encountered")                                    \
  X(cudaErrorPeerAccessUnsupported, 217, "peer access is not supported between these two devices")            \
  X(cudaErrorOperatingSystem, 304, "OS call failed or operation not supported on this OS")                    \
  X(cudaErrorInvalidResourceHandle, 400, "invalid resource handle")                                           \
  X(cudaErrorIllegalState, 401, "the operation cannot be performed in the present state")                     \
  X(cudaErrorSymbolNotFound, 500, "named symbol not found")                                                   \
  X(cudaErrorNotReady, 600, "device not ready")                                                               \
  X(cudaErrorIllegalAddress, 700, "an illegal memory access was encountered")                                 \
  X(cudaErrorLaunchOutOfResources, 701, "too many resources requested for launch")                            \
  X(cudaErrorLaunchTimeout, 702, "the launch timed out and was terminated")                                   \
  X(cudaErrorContextIsDestroyed, 709, "context is destroyed")                                                 \
  X(cudaErrorAssert, 710, "device-side assert triggered")                                                     \
  X(cudaErrorHostMemoryAlreadyRegistered, 712, "part or all of the requested memory range is already mapped") \
  X(cudaErrorHostMemoryNotRegistered, 713, "pointer does not correspond to a registered memory region")       \
  X(cudaErrorHardwareStackError, 714, "hardware stack error")                                                 \
  X(cudaErrorIllegalInstruction, 715, "an illegal instruction was encountered")                               \
  X(cudaErrorMisalignedAddress, 716, "misaligned address")                                                    \
  X(cudaErrorLaunchFailure, 719, "unspecified launch failure")                                                \
  X(cudaErrorNotPermitted, 800, "operation not permitted")                                                    \
  X(cudaErrorNotSupported, 801, "operation not supported")                                                    \
  X(cudaErrorSystemNotReady, 802, "system not yet initialized")                                               \
  X(cudaErrorStreamCaptureUnsupported, 900, "operation not permitted when stream is capturing")               \
  X(cudaErrorStreamCaptureInvalidated, 901, "operation failed due to a previous error during capture")        \
  X(cudaErrorStreamCaptureUnmatched, 903, "capture was not initiated in this stream")                         \
  X(cudaErrorTimeout, 909, "wait operation timed out")                                                        \
  X(cudaErrorUnknown, 999, "unknown error")

#define MICA_EMULATED_DRIVER_ERRORS(X)                                                                             \
  X(CUDA_ERROR_INVALID_VALUE, 1, "invalid argument")                                                               \
  X(CUDA_ERROR_OUT_OF_MEMORY, 2, "out of memory")                                                                  \
  X(CUDA_ERROR_NOT_INITIALIZED, 3, "initialization error")                                                         \
  X(CUDA_ERROR_DEINITIALIZED, 4, "driver shutting down")                                                           \
  X(CUDA_ERROR_STUB_LIBRARY, 34, "CUDA driver is a stub library")                                                  \
  X(CUDA_ERROR_DEVICE_UNAVAILABLE, 46, "CUDA-capable device(s) is/are busy or unavailable")                        \
  X(CUDA_ERROR_NO_DEVICE, 100, "no CUDA-capable device is detected")                                               \
  X(CUDA_ERROR_INVALID_DEVICE, 101, "invalid device ordinal")                                                      \
  X(CUDA_ERROR_INVALID_CONTEXT, 201, "invalid device context")                                                     \
  X(CUDA_ERROR_NO_BINARY_FOR_GPU, 209, "no kernel image is available for execution on the device")                 \
  X(CUDA_ERROR_ECC_UNCORRECTABLE, 214, "uncorrectable ECC error encountered")                                      \
  X(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, 217, "peer access is not supported between these two devices")             \
  X(CUDA_ERROR_OPERATING_SYSTEM, 304, "OS call failed or operation not supported on this OS")                      \
  X(CUDA_ERROR_INVALID_HANDLE, 400, "invalid resource handle")                                                     \
  X(CUDA_ERROR_ILLEGAL_STATE, 401, "the operation cannot be performed in the present state")                       \
  X(CUDA_ERROR_NOT_FOUND, 500, "named symbol not found")                                                           \
  X(CUDA_ERROR_NOT_READY, 600, "device not ready")                                                                 \
  X(CUDA_ERROR_ILLEGAL_ADDRESS, 700, "an illegal memory access was encountered")                                   \
  X(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, 701, "too many resources requested for launch")                            \
  X(CUDA_ERROR_LAUNCH_TIMEOUT, 702, "the launch timed out and was terminated")                                     \
  X(CUDA_ERROR_CONTEXT_IS_DESTROYED, 709, "context is destroyed")                                                  \
  X(CUDA_ERROR_ASSERT, 710, "device-side assert triggered")                                                        \
  X(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, 712, "part or all of the requested memory range is already mapped") \
  X(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, 713, "pointer does not correspond to a registered memory region")       \
  X(CUDA_ERROR_HARDWARE_STACK_ERROR, 714, "hardware stack error")                                                  \
  X(CUDA_ERROR_ILLEGAL_INSTRUCTION, 715, "an illegal instruction was encountered")                                 \
  X(CUDA_ERROR_MISALIGNED_ADDRESS, 716, "misaligned address")                                                      \
  X(CUDA_ERROR_LAUNCH_FAILED, 719, "unspecified launch failure")                                                   \
  X(CUDA_ERROR_NOT_PERMITTED, 800, "operation not permitted")                                                      \
  X(CUDA_ERROR_NOT_SUPPORTED, 801, "operation not supported")                                                      \
  X(CUDA_ERROR_SYSTEM_NOT_READY, 802, "system not yet initialized")                                                \
  X(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, 900, "operation not permitted when stream is capturing")                \
  X(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, 901, "operation failed due to a previous error during capture")         \
  X(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, 903, "capture was not initiated in this stream")                          \
  X(CUDA_ERROR_TIMEOUT, 909, "wait operation timed out")                                                           \
  X(CUDA_ERROR_UNKNOWN, 999, "unknown error")
