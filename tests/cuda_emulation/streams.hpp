#pragma once

#include <atomic>
#include <chrono>
#include <memory>

#include <cuda_runtime_api.h>

/// Becomes true when what keeps a stream or event busy has ended; null: nothing does.
using Released = std::shared_ptr<std::atomic<bool>>;

struct CUstream_st {
  int device = 0;
  int priority = 0;
  Released released;
};

struct CUevent_st {
  int device = 0;
  bool timed = true;
  bool recorded = false;
  std::chrono::steady_clock::time_point at;
  Released released;
};

namespace mica::cuda_emulation {

/// Whether the handle is a stream that lives; the null stream does.
[[nodiscard]] bool is_stream(cudaStream_t stream);
/// The stream's GPU; the calling thread's for the null stream.
[[nodiscard]] int device_of(cudaStream_t stream);

/// The stream and the events recorded on it from now on are not ready until then. The one exception from doing
/// everything at once: for collectives that never end.
void keep_busy(cudaStream_t stream, const Released& released);

}  // namespace mica::cuda_emulation
