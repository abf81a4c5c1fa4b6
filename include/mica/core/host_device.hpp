// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Marks a function that also runs on a GPU; empty unless CUDA's compiler reads it.
#if defined(__CUDACC__)
#define MICA_HOST_DEVICE __host__ __device__
#else
#define MICA_HOST_DEVICE
#endif
