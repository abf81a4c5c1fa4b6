// SPDX-License-Identifier: Apache-2.0
#pragma once

// CUDA C++'s words, for a C++ compiler. __CUDACC__ stays undefined.
#define __global__
#define __device__
#define __host__
#define __constant__
#define __grid_constant__
/// One copy per thread of the host: it runs one block at a time.
#define __shared__ static thread_local
#define __launch_bounds__(...)
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(n) __attribute__((aligned(n)))
