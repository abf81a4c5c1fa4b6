// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <memory>

#include <cuda_runtime_api.h>

#include "queues.hpp"

struct CUstream_st {
  int device = 0;
  int priority = 0;
  std::shared_ptr<mica::cuda_emulation::Queue> queue;
};

/// One recording of an event.
struct Recorded {
  std::atomic<bool> is_over = false;
  std::chrono::steady_clock::time_point at;
};

struct CUevent_st {
  int device = 0;
  bool timed = true;
  std::shared_ptr<Recorded> last;  ///< null: never recorded
};

namespace mica::cuda_emulation {

/// Whether the handle is a stream that lives; the null stream does.
[[nodiscard]] bool is_stream(cudaStream_t stream);
/// The stream's GPU; the calling thread's for the null stream.
[[nodiscard]] int device_of(cudaStream_t stream);
[[nodiscard]] Queue& queue_of(cudaStream_t stream);

/// Enqueues what never waits.
template <class Action>
void enqueue_action(cudaStream_t stream, Action action) {
  enqueue(queue_of(stream), [action = std::move(action)]() mutable {
    action();
    return Progress::done;
  });
}

}  // namespace mica::cuda_emulation
