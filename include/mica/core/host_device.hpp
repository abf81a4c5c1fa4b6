#pragma once

/// Marks a function that also runs on a GPU. Only with CUDA's compiler does it say anything.
#if defined(__CUDACC__)
#define MICA_HOST_DEVICE __host__ __device__
#else
#define MICA_HOST_DEVICE
#endif
