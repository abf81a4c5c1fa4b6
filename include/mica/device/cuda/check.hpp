// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <source_location>

#include <cuda_runtime_api.h>

#include "mica/device/stream.hpp"

// For CUDA sources only: needs CUDA's headers.
namespace mica::cuda {

/// @throws CudaError "cudaMalloc: out of memory (cudaErrorMemoryAllocation) at cuda_pool.cpp:12, GPU 0"
void check(cudaError_t error, const char* what, std::source_location where = std::source_location::current());

/// The stream's handle; null for a stream that has none.
[[nodiscard]] inline cudaStream_t native(const Stream& stream) { return static_cast<cudaStream_t>(stream.native()); }

/// Rethrows the error that event.wait_on_host() would throw, if it is known by now. Does not wait and does not call CUDA.
void rethrow_error(const Event& event);

/// The calling thread works on GPU `index` from now on. The previous GPU is not restored: a new thread is nominally on GPU 0,
/// and restoring that would create a context, some 0.5 GB, on another rank's GPU.
void stay_on(int index);

/// The calling thread's GPU.
[[nodiscard]] int current_gpu();

}  // namespace mica::cuda
