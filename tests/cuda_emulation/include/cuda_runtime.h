// SPDX-License-Identifier: Apache-2.0
#pragma once

// CUDA C++ for a C++ compiler, see [Note: emulated headers] in vector_types.h.
#include <cmath>

#include "cuda_runtime_api.h"
#include "emulated/block.h"
#include "emulated/intrinsics.h"
#include "emulated/keywords.h"
#include "emulated/launch.h"
#include "vector_functions.h"

template <class T>
inline cudaError_t cudaMalloc(T** devPtr, std::size_t size) {
  return ::cudaMalloc(reinterpret_cast<void**>(devPtr), size);
}
template <class T>
inline cudaError_t cudaMallocAsync(T** ptr, std::size_t size, cudaStream_t stream) {
  return ::cudaMallocAsync(reinterpret_cast<void**>(ptr), size, stream);
}
template <class T>
inline cudaError_t cudaHostAlloc(T** ptr, std::size_t size, unsigned int flags) {
  return ::cudaHostAlloc(reinterpret_cast<void**>(ptr), size, flags);
}
template <class T>
inline cudaError_t cudaMallocHost(T** ptr, std::size_t size, unsigned int flags = 0) {
  return ::cudaHostAlloc(reinterpret_cast<void**>(ptr), size, flags);
}
inline cudaError_t cudaEventCreate(cudaEvent_t* event, unsigned int flags) { return ::cudaEventCreateWithFlags(event, flags); }
