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

/// Rethrows the error that event.wait_on_host() would, if it is there by now: no wait, and no call of CUDA.
void rethrow_error(const Event& event);

/// The calling thread works on GPU `index` from now on. It is not put back where it was: a fresh thread is on GPU 0 by name
/// only, and going back there would make a context, some 0.5 GB, on a GPU that is another rank's.
void stay_on(int index);

/// The calling thread's GPU.
[[nodiscard]] int current_gpu();

}  // namespace mica::cuda
