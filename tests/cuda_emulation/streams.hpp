#pragma once

#include <chrono>

#include <cuda_runtime_api.h>

struct CUstream_st {
  int device = 0;
  int priority = 0;
};

struct CUevent_st {
  int device = 0;
  bool timed = true;
  bool recorded = false;
  std::chrono::steady_clock::time_point at;
};

namespace mica::cuda_emulation {

/// Whether the handle is a stream that lives; the null stream does.
[[nodiscard]] bool is_stream(cudaStream_t stream);
/// The stream's GPU; the calling thread's for the null stream.
[[nodiscard]] int device_of(cudaStream_t stream);

}  // namespace mica::cuda_emulation
