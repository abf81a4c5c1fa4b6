#pragma once

#include <source_location>

#include <cuda_runtime_api.h>

#include "mica/device/stream.hpp"

// For CUDA sources only: needs CUDA's headers.
namespace mica::cuda {

/// @throws CudaError "cudaMalloc: out of memory (cudaErrorMemoryAllocation) at cuda_pool.cpp:12, GPU 0"
void check(cudaError_t error, const char* what, std::source_location where = std::source_location::current());

/// The stream's handle. @throws Error for a stream of the CPU
[[nodiscard]] cudaStream_t native(const Stream& stream);

}  // namespace mica::cuda
