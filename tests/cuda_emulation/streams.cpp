#include "streams.hpp"

#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <set>
#include <thread>

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

constexpr auto kDeadline = std::chrono::seconds(60);

std::mutex& busy_mutex() {
  static auto& mutex = *new std::mutex;
  return mutex;
}

/// What keeps a stream or an event busy now.
template <class Handle>
Released busy(Handle handle) {
  const std::lock_guard lock(busy_mutex());
  return handle->released != nullptr && !*handle->released ? handle->released : nullptr;
}

void wait_until(const Released& released, const char* what) {
  const auto begin = std::chrono::steady_clock::now();
  while (released != nullptr && !*released) {
    if (std::chrono::steady_clock::now() - begin > kDeadline) {
      std::fprintf(stderr, "CUDA emulation: %s waited 60 s for a collective that never ends\n", what);
      std::abort();
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

Living<cudaStream_t>& streams() {
  static auto& all = *new Living<cudaStream_t>;
  return all;
}
Living<cudaEvent_t>& events() {
  static auto& all = *new Living<cudaEvent_t>;
  return all;
}

bool is_null(cudaStream_t stream) {
  return stream == nullptr || stream == cudaStreamLegacy || stream == cudaStreamPerThread;
}

cudaError_t check_stream(cudaStream_t stream) {
  return is_stream(stream) ? cudaSuccess : failed(cudaErrorInvalidResourceHandle);
}

cudaError_t create(cudaStream_t* stream, unsigned int flags, int priority) {
  if (device_count() == 0) return failed(cudaErrorNoDevice);
  if (stream == nullptr || (flags & ~1U) != 0) return failed(cudaErrorInvalidValue);
  *stream = new CUstream_st{current_device(), priority, nullptr};
  streams().add(*stream);
  return cudaSuccess;
}

cudaError_t create(cudaEvent_t* event, unsigned int flags) {
  if (device_count() == 0) return failed(cudaErrorNoDevice);
  if (event == nullptr) return failed(cudaErrorInvalidValue);
  *event = new CUevent_st{current_device(), (flags & cudaEventDisableTiming) == 0, false, {}, nullptr};
  events().add(*event);
  return cudaSuccess;
}

}  // namespace

bool is_stream(cudaStream_t stream) { return is_null(stream) || streams().has(stream); }
int device_of(cudaStream_t stream) { return is_null(stream) ? current_device() : stream->device; }

void keep_busy(cudaStream_t stream, const Released& released) {
  if (is_null(stream)) return;
  const std::lock_guard lock(busy_mutex());
  stream->released = released;
}

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
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  MICA_EMULATED_ENTER(cudaStreamSynchronize, .waits());
  if (const auto error = check_stream(stream); error != cudaSuccess) return error;
  if (!is_null(stream)) wait_until(busy(stream), "cudaStreamSynchronize");
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  MICA_EMULATED_ENTER(cudaStreamQuery);
  if (const auto error = check_stream(stream); error != cudaSuccess) return error;
  return !is_null(stream) && busy(stream) != nullptr ? cudaErrorNotReady : cudaSuccess;
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
  if (const auto released = busy(event)) keep_busy(stream, released);
  return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void* userData) {
  MICA_EMULATED_ENTER(cudaLaunchHostFunc);
  if (const auto error = check_stream(stream); error != cudaSuccess) return error;
  if (fn == nullptr) return failed(cudaErrorInvalidValue);
  in_host_function() = true;
  fn(userData);
  in_host_function() = false;
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
  event->recorded = true;
  event->at = std::chrono::steady_clock::now();
  const auto released = is_null(stream) ? nullptr : busy(stream);
  const std::lock_guard lock(busy_mutex());
  event->released = released;
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  MICA_EMULATED_ENTER(cudaEventQuery);
  if (!events().has(event)) return failed(cudaErrorInvalidResourceHandle);
  return busy(event) != nullptr ? cudaErrorNotReady : cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  MICA_EMULATED_ENTER(cudaEventSynchronize, .waits());
  if (!events().has(event)) return failed(cudaErrorInvalidResourceHandle);
  wait_until(busy(event), "cudaEventSynchronize");
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t end) {
  MICA_EMULATED_ENTER(cudaEventElapsedTime);
  for (const auto event : {start, end}) {
    if (!events().has(event) || !event->recorded || !event->timed) return failed(cudaErrorInvalidResourceHandle);
    if (busy(event) != nullptr) return failed(cudaErrorNotReady);
  }
  *ms = std::chrono::duration<float, std::milli>(end->at - start->at).count();
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
cudaError_t cudaGraphInstantiate(cudaGraphExec_t*, cudaGraph_t, unsigned long long) {
  return failed(cudaErrorNotSupported);
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t) { return failed(cudaErrorNotSupported); }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t) { return failed(cudaErrorNotSupported); }
cudaError_t cudaGraphDestroy(cudaGraph_t) { return failed(cudaErrorNotSupported); }
