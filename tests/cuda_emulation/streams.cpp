// SPDX-License-Identifier: Apache-2.0
#include "streams.hpp"

#include <mutex>
#include <set>
#include <utility>

#include "api.hpp"

namespace mica::cuda_emulation {

namespace {

/// Handles that live, so that one that was destroyed is an error and not a crash.
template <class Handle>
class Living {
 public:
  void add(Handle handle) {
    const std::lock_guard lock(mutex_);
    handles_.insert(handle);
  }
  [[nodiscard]] bool has(Handle handle) {
    const std::lock_guard lock(mutex_);
    return handles_.contains(handle);
  }
  [[nodiscard]] bool remove(Handle handle) {
    const std::lock_guard lock(mutex_);
    return handles_.erase(handle) == 1;
  }

 private:
  std::mutex mutex_;
  std::set<Handle> handles_;
};

Living<cudaStream_t>& streams() {
  static auto& all = *new Living<cudaStream_t>;
  return all;
}
Living<cudaEvent_t>& events() {
  static auto& all = *new Living<cudaEvent_t>;
  return all;
}

bool is_null(cudaStream_t stream) { return stream == nullptr || stream == cudaStreamLegacy || stream == cudaStreamPerThread; }

cudaError_t check_stream(cudaStream_t stream) { return is_stream(stream) ? cudaSuccess : failed(cudaErrorInvalidResourceHandle); }

cudaError_t create(cudaStream_t* stream, unsigned int flags, int priority) {
  if (device_count() == 0) return failed(cudaErrorNoDevice);
  if (stream == nullptr || (flags & ~1U) != 0) return failed(cudaErrorInvalidValue);
  *stream = new CUstream_st{current_device(), priority, make_queue(current_device())};
  streams().add(*stream);
  return cudaSuccess;
}

cudaError_t create(cudaEvent_t* event, unsigned int flags) {
  if (device_count() == 0) return failed(cudaErrorNoDevice);
  if (event == nullptr) return failed(cudaErrorInvalidValue);
  *event = new CUevent_st{current_device(), (flags & cudaEventDisableTiming) == 0, nullptr};
  events().add(*event);
  return cudaSuccess;
}

}  // namespace

bool is_stream(cudaStream_t stream) { return is_null(stream) || streams().has(stream); }
int device_of(cudaStream_t stream) { return is_null(stream) ? current_device() : stream->device; }

Queue& queue_of(cudaStream_t stream) { return is_null(stream) ? null_queue(current_device()) : *stream->queue; }

}  // namespace mica::cuda_emulation

using namespace mica::cuda_emulation;

cudaError_t cudaStreamCreate(cudaStream_t* pStream) {
  MICA_EMULATED_ENTER(cudaStreamCreate);
  return create(pStream, cudaStreamDefault, 0);
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* pStream, unsigned int flags) {
  MICA_EMULATED_ENTER(cudaStreamCreateWithFlags);
  return create(pStream, flags, 0);
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* pStream, unsigned int flags, int priority) {
  MICA_EMULATED_ENTER(cudaStreamCreateWithPriority);
  return create(pStream, flags, priority);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  MICA_EMULATED_ENTER(cudaStreamDestroy);
  if (!streams().remove(stream)) return failed(cudaErrorInvalidResourceHandle);
  close(*stream->queue);
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  MICA_EMULATED_ENTER(cudaStreamSynchronize, .waits());
  if (const auto error = check_stream(stream); error != cudaSuccess) return error;
  finish(queue_of(stream), "cudaStreamSynchronize");
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  MICA_EMULATED_ENTER(cudaStreamQuery);
  if (const auto error = check_stream(stream); error != cudaSuccess) return error;
  go_on();
  return is_empty(queue_of(stream)) ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaStreamGetPriority(cudaStream_t hStream, int* priority) {
  MICA_EMULATED_ENTER(cudaStreamGetPriority);
  if (const auto error = check_stream(hStream); error != cudaSuccess) return error;
  *priority = is_null(hStream) ? 0 : hStream->priority;
  return cudaSuccess;
}
cudaError_t cudaStreamGetDevice(cudaStream_t hStream, int* device) {
  MICA_EMULATED_ENTER(cudaStreamGetDevice);
  if (const auto error = check_stream(hStream); error != cudaSuccess) return error;
  *device = device_of(hStream);
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int) {
  MICA_EMULATED_ENTER(cudaStreamWaitEvent);
  if (!events().has(event)) return failed(cudaErrorInvalidResourceHandle);
  if (const auto error = check_stream(stream); error != cudaSuccess) return error;
  if (const auto last = event->last; last != nullptr && !last->is_over) {
    enqueue(queue_of(stream), [last] { return last->is_over ? Progress::done : Progress::hangs; });
  }
  return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void* userData) {
  MICA_EMULATED_ENTER(cudaLaunchHostFunc);
  if (const auto error = check_stream(stream); error != cudaSuccess) return error;
  if (fn == nullptr) return failed(cudaErrorInvalidValue);
  enqueue_action(stream, [fn, userData] {
    in_host_function() = true;
    fn(userData);
    in_host_function() = false;
  });
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  MICA_EMULATED_ENTER(cudaEventCreate);
  return create(event, cudaEventDefault);
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int flags) {
  MICA_EMULATED_ENTER(cudaEventCreateWithFlags);
  return create(event, flags);
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  MICA_EMULATED_ENTER(cudaEventRecord);
  if (const auto error = check_stream(stream); error != cudaSuccess) return error;
  if (!events().has(event) || event->device != device_of(stream)) return failed(cudaErrorInvalidResourceHandle);
  event->last = std::make_shared<Recorded>();
  enqueue_action(stream, [recorded = event->last] {
    recorded->at = std::chrono::steady_clock::now();
    recorded->is_over = true;
  });
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  MICA_EMULATED_ENTER(cudaEventQuery);
  if (!events().has(event)) return failed(cudaErrorInvalidResourceHandle);
  if (event->last == nullptr || event->last->is_over) return cudaSuccess;
  go_on();
  return event->last->is_over ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  MICA_EMULATED_ENTER(cudaEventSynchronize, .waits());
  if (!events().has(event)) return failed(cudaErrorInvalidResourceHandle);
  if (const auto last = event->last) work_until([&] { return last->is_over.load(); }, "cudaEventSynchronize");
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t end) {
  MICA_EMULATED_ENTER(cudaEventElapsedTime);
  for (const auto event : {start, end}) {
    if (!events().has(event) || event->last == nullptr || !event->timed) return failed(cudaErrorInvalidResourceHandle);
    if (!event->last->is_over) return failed(cudaErrorNotReady);
  }
  *ms = std::chrono::duration<float, std::milli>(end->last->at - start->last->at).count();
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  MICA_EMULATED_ENTER(cudaEventDestroy);
  if (!events().remove(event)) return failed(cudaErrorInvalidResourceHandle);
  delete event;
  return cudaSuccess;
}

// ---- graphs
cudaError_t cudaStreamBeginCapture(cudaStream_t, enum cudaStreamCaptureMode) { return failed(cudaErrorNotSupported); }
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t*) { return failed(cudaErrorNotSupported); }
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus* pCaptureStatus) {
  *pCaptureStatus = cudaStreamCaptureStatusNone;
  return check_stream(stream);
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t*, cudaGraph_t, unsigned long long) { return failed(cudaErrorNotSupported); }
cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t) { return failed(cudaErrorNotSupported); }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t) { return failed(cudaErrorNotSupported); }
cudaError_t cudaGraphDestroy(cudaGraph_t) { return failed(cudaErrorNotSupported); }
