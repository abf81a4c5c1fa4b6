// SPDX-License-Identifier: Apache-2.0
#include "cuda_stream.hpp"

#include <algorithm>
#include <atomic>
#include <exception>
#include <limits>
#include <mutex>
#include <vector>

#include <nvtx3/nvToolsExt.h>

#include "mica/core/error.hpp"
#include "mica/device/cuda/check.hpp"
#include "mica/device/gpu.hpp"
#include "mica/device/waited_events.hpp"

namespace mica {
namespace {

using cuda::check;

/// This many tasks after memory was freed its last use is recorded, if the event is still held.
constexpr std::uint64_t kLatestRecord = 16;

/// What a stream and its events share; it outlives the stream as long as there are events.
class StreamState {
 public:
  StreamState(int gpu, cudaStream_t native) : gpu_(gpu), native_(native) {}
  ~StreamState() {
    for (cudaEvent_t event : spare_) static_cast<void>(cudaEventDestroy(event));
  }
  StreamState(const StreamState&) = delete;
  StreamState& operator=(const StreamState&) = delete;

  [[nodiscard]] int gpu() const { return gpu_; }
  /// Null once the stream is destroyed; all its work is done then.
  [[nodiscard]] cudaStream_t native() const { return native_; }
  void close() { native_ = nullptr; }

  /// The host's count of what it has enqueued.
  [[nodiscard]] std::uint64_t num_enqueued() const { return num_enqueued_; }
  void count_enqueued() { ++num_enqueued_; }

  /// Failures become the sticky error.
  template <class Action>
  void attempt(const Action& action) {
    try {
      cuda::stay_on(gpu_);
      action();
    } catch (...) {
      fail(std::current_exception(), num_enqueued_);
    }
  }

  /// Events are reused: a training step records hundreds.
  cudaEvent_t take_event() {
    {
      const std::lock_guard lock(mutex_);
      if (!spare_.empty()) {
        cudaEvent_t event = spare_.back();
        spare_.pop_back();
        return event;
      }
    }
    cudaEvent_t event = nullptr;
    // A host that waits sleeps.
    check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventBlockingSync), "cudaEventCreateWithFlags");
    return event;
  }
  void give_event(cudaEvent_t event) {
    const std::lock_guard lock(mutex_);
    spare_.push_back(event);
  }

  void fail(std::exception_ptr error, std::uint64_t at) {
    const std::lock_guard lock(mutex_);
    if (error_) return;
    error_ = std::move(error);
    failed_at_ = at;
    failed_.store(true, std::memory_order_release);
  }
  [[nodiscard]] bool failed() const { return failed_.load(std::memory_order_acquire); }
  void rethrow_error_up_to(std::uint64_t number) {
    if (!failed()) return;
    std::exception_ptr seen;
    {
      const std::lock_guard lock(mutex_);
      if (failed_at_ <= number) seen = error_;
    }
    if (seen) std::rethrow_exception(seen);
  }
  void clear_error() {
    const std::lock_guard lock(mutex_);
    error_ = nullptr;
    failed_.store(false, std::memory_order_release);
  }

 private:
  int gpu_;
  cudaStream_t native_;
  std::uint64_t num_enqueued_ = 0;
  std::mutex mutex_;
  std::vector<cudaEvent_t> spare_;
  std::exception_ptr error_;
  std::uint64_t failed_at_ = 0;
  std::atomic<bool> failed_{false};
};

/// A point of a stream, recorded when it is first needed: by the stream's host thread, before others get to see it.
class CudaEvent final : public EventState {
 public:
  explicit CudaEvent(std::shared_ptr<StreamState> stream) : stream_(std::move(stream)), first_number_(stream_->num_enqueued()) {}
  ~CudaEvent() override {
    if (event_ != nullptr) stream_->give_event(event_);
  }
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;

  [[nodiscard]] bool is_recorded() const { return is_recorded_; }
  /// What was enqueued when it was made; it comes no earlier.
  [[nodiscard]] std::uint64_t first_number() const { return first_number_; }
  void record() const {
    if (is_recorded_) return;
    is_recorded_ = true;
    number_ = stream_->num_enqueued();
    if (stream_->native() == nullptr) return;
    // Destructors return memory and record: a driver's error there is the stream's error too.
    stream_->attempt([this] {
      event_ = stream_->take_event();
      check(cudaEventRecord(event_, stream_->native()), "cudaEventRecord");
    });
  }

  [[nodiscard]] bool is_complete() const override {
    record();
    if (event_ == nullptr) return true;
    cuda::stay_on(stream_->gpu());
    const cudaError_t state = cudaEventQuery(event_);
    if (state == cudaErrorNotReady) return false;
    check(state, "cudaEventQuery");
    is_over_ = true;
    return true;
  }
  void wait_on_host() override {
    record();
    if (event_ != nullptr && !is_over_) {
      cuda::stay_on(stream_->gpu());
      check(cudaEventSynchronize(event_), "cudaEventSynchronize");
    }
    stream_->rethrow_error_up_to(number_);
  }
  void rethrow_error() const {
    if (is_recorded_) stream_->rethrow_error_up_to(number_);
  }
  [[nodiscard]] const void* origin() const override { return stream_.get(); }
  [[nodiscard]] std::uint64_t sequence() const override { return is_recorded_ ? number_ : stream_->num_enqueued(); }

  /// Orders all later work of the stream with this handle after it.
  void enqueue_wait(cudaStream_t stream) const {
    record();
    if (event_ != nullptr) check(cudaStreamWaitEvent(stream, event_, 0), "cudaStreamWaitEvent");
    stream_->rethrow_error_up_to(number_);
  }

 private:
  std::shared_ptr<StreamState> stream_;
  std::uint64_t first_number_;
  mutable bool is_recorded_ = false;
  mutable bool is_over_ = false;         // is_complete() has seen it
  mutable std::uint64_t number_ = 0;     // of what was enqueued before it
  mutable cudaEvent_t event_ = nullptr;  // null until recorded, and if the stream was destroyed before that
};

class CudaStream final : public Stream {
 public:
  CudaStream(std::string name, GpuPriority priority) : name_(std::move(name)) {
    int lowest = 0, highest = 0;
    check(cudaDeviceGetStreamPriorityRange(&lowest, &highest), "cudaDeviceGetStreamPriorityRange");
    check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, priority == GpuPriority::high ? highest : lowest),
          "cudaStreamCreateWithPriority");
    state_ = std::make_shared<StreamState>(cuda::current_gpu(), stream_);
  }
  ~CudaStream() override {
    static_cast<void>(cudaStreamSynchronize(stream_));
    static_cast<void>(cudaStreamDestroy(stream_));
    state_->close();
  }
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  [[nodiscard]] DeviceKind device() const override { return DeviceKind::cuda; }
  [[nodiscard]] const std::string& name() const override { return name_; }
  [[nodiscard]] void* native() const override { return stream_; }

  void submit(const char* /*what*/, std::span<const Access> /*accesses*/, Task task) override {
    if (is_unrecorded() && state_->num_enqueued() - latest_->first_number() >= kLatestRecord) record_or_drop_latest();
    state_->count_enqueued();
    if (!state_->failed()) state_->attempt([&] { task(); });
  }

  void fail(std::exception_ptr error) override { state_->fail(std::move(error), 0); }

  // NVIDIA's profilers show these ranges of the host's calls, projected onto the work that the host enqueued.
  void begin_range(std::string_view owner, const char* phase) override {
    range_.assign(owner).append(" ").append(phase);
    nvtxRangePushA(range_.c_str());
  }
  void end_range() override { nvtxRangePop(); }

  [[nodiscard]] Event record() override {
    if (state_->num_enqueued() == 0) return {};
    make_latest();
    latest_->record();
    return Event(latest_);
  }
  [[nodiscard]] Event record_last_use() {
    if (state_->num_enqueued() == 0) return {};
    make_latest();
    return Event(latest_);
  }

  void wait(const Event& event, std::source_location /*site*/) override {
    if (!event.state() || waited_.is_known(event, state_.get())) return;
    if (is_unrecorded()) record_or_drop_latest();  // what it stands for does not wait for this
    state_->count_enqueued();
    state_->attempt([&] {
      if (const auto* recorded = dynamic_cast<const CudaEvent*>(event.state().get())) {
        recorded->enqueue_wait(stream_);
      } else {
        event.wait_on_host();  // of a stream of the CPU
      }
    });
  }

  void synchronize() override {
    state_->attempt([&] { check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); });
    state_->rethrow_error_up_to(std::numeric_limits<std::uint64_t>::max());
  }

  void drain_and_clear_error() noexcept override {
    static_cast<void>(cudaStreamSynchronize(stream_));
    state_->clear_error();
  }

 private:
  /// One event serves all requests between two tasks, and all last uses until it is recorded.
  void make_latest() {
    const bool is_of_now = latest_ && latest_->sequence() == state_->num_enqueued();  // one that is not recorded always is
    if (!is_of_now) latest_ = std::make_shared<CudaEvent>(state_);
  }
  [[nodiscard]] bool is_unrecorded() const { return latest_ && !latest_->is_recorded(); }
  /// Fixes the last uses that the latest event stands for: records it, or drops it if nothing else holds it.
  void record_or_drop_latest() {
    if (latest_.use_count() == 1) {
      latest_.reset();  // the memory was used again on this stream
    } else {
      latest_->record();
    }
  }

  std::string name_;
  cudaStream_t stream_ = nullptr;
  std::shared_ptr<StreamState> state_;
  std::string range_;
  std::shared_ptr<CudaEvent> latest_;
  detail::WaitedEvents waited_;
};

}  // namespace

void cuda::rethrow_error(const Event& event) {
  if (const auto* recorded = dynamic_cast<const CudaEvent*>(event.state().get())) recorded->rethrow_error();
}

Event detail::record_last_use(Stream& stream) {
  auto* on_gpu = dynamic_cast<CudaStream*>(&stream);
  return on_gpu ? on_gpu->record_last_use() : stream.record();
}

std::unique_ptr<Stream> make_cuda_stream(std::string name, GpuPriority priority) {
  return std::make_unique<CudaStream>(std::move(name), priority);
}

}  // namespace mica
