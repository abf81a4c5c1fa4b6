// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "mica/core/dtype.hpp"
#include "mica/core/error.hpp"

// Types of tensor elements in kernels: float, __nv_bfloat16 and __half, in packs of 16 bytes.
namespace mica::cuda {

__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ inline float to_float(__half x) { return __half2float(x); }

/// Rounded to nearest, ties to even.
template <class T>
__device__ T from_float(float x);
template <>
__device__ inline float from_float<float>(float x) {
  return x;
}
template <>
__device__ inline __nv_bfloat16 from_float<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}
template <>
__device__ inline __half from_float<__half>(float x) {
  return __float2half_rn(x);
}

/// The elements that one thread reads or writes at a time if addresses are multiples of 16 bytes.
template <class T>
struct alignas(16) Pack {
  static constexpr int kNumel = 16 / static_cast<int>(sizeof(T));
  T element[kNumel];
};

/// Calls f with a value of the type that kernels use for elements of `dtype`.  @throws Error for other dtypes
template <class F>
void with_element(DType dtype, const F& f) {
  switch (dtype) {
    case DType::f32:
      return f(float{});
    case DType::bf16:
      return f(__nv_bfloat16{});
    case DType::f16:
      return f(__half{});
    default:
      throw Error("a kernel for floating-point numbers was called with " + std::string(dtype_name(dtype)));
  }
}

[[nodiscard]] inline bool is_aligned(const void* data, std::int64_t bytes) {
  return reinterpret_cast<std::uintptr_t>(data) % static_cast<std::uintptr_t>(bytes) == 0;
}

}  // namespace mica::cuda
