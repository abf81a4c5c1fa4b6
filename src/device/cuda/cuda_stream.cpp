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

#include "../waited_events.hpp"

namespace mica {
namespace {

using cuda::check;

/// What a stream and its events share; it outlives the stream as long as there are events.
class StreamState {
 public:
  explicit StreamState(int gpu) : gpu_(gpu) {}
  ~StreamState() {
    for (cudaEvent_t event : spare_) static_cast<void>(cudaEventDestroy(event));
  }
  StreamState(const StreamState&) = delete;
  StreamState& operator=(const StreamState&) = delete;

  [[nodiscard]] int gpu() const { return gpu_; }

  /// Events are made once and used again: a training step records hundreds.
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
    check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
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
  std::mutex mutex_;
  std::vector<cudaEvent_t> spare_;
  std::exception_ptr error_;
  std::uint64_t failed_at_ = 0;
  std::atomic<bool> failed_{false};
};

class CudaEvent final : public EventState {
 public:
  CudaEvent(std::shared_ptr<StreamState> stream, cudaEvent_t event, std::uint64_t number)
      : stream_(std::move(stream)), event_(event), number_(number) {}
  ~CudaEvent() override { stream_->give_event(event_); }
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;

  [[nodiscard]] bool is_complete() const override {
    cuda::stay_on(stream_->gpu());
    const cudaError_t state = cudaEventQuery(event_);
    if (state == cudaErrorNotReady) return false;
    check(state, "cudaEventQuery");
    return true;
  }
  void wait_on_host() override {
    cuda::stay_on(stream_->gpu());
    check(cudaEventSynchronize(event_), "cudaEventSynchronize");
    stream_->rethrow_error_up_to(number_);
  }
  [[nodiscard]] const void* origin() const override { return stream_.get(); }
  [[nodiscard]] std::uint64_t sequence() const override { return number_; }

  [[nodiscard]] cudaEvent_t native() const { return event_; }
  void rethrow_error() const { stream_->rethrow_error_up_to(number_); }

 private:
  std::shared_ptr<StreamState> stream_;
  cudaEvent_t event_;
  std::uint64_t number_;
};

class CudaStream final : public Stream {
 public:
  explicit CudaStream(std::string name) : name_(std::move(name)), state_(std::make_shared<StreamState>(cuda::current_gpu())) {
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  }
  ~CudaStream() override {
    static_cast<void>(cudaStreamSynchronize(stream_));
    static_cast<void>(cudaStreamDestroy(stream_));
  }
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  [[nodiscard]] DeviceKind device() const override { return DeviceKind::cuda; }
  [[nodiscard]] const std::string& name() const override { return name_; }
  [[nodiscard]] void* native() const override { return stream_; }

  void submit(const char* /*what*/, std::span<const Access> /*accesses*/, Task task) override {
    ++num_enqueued_;
    if (!state_->failed()) attempt([&] { task(); });
  }

  void fail(std::exception_ptr error) override { state_->fail(std::move(error), 0); }

  // Ranges as NVIDIA's profilers show them: of the host's enqueueing, projected on what it enqueued.
  void begin_range(std::string_view owner, const char* phase) override {
    range_.assign(owner).append(" ").append(phase);
    nvtxRangePushA(range_.c_str());
  }
  void end_range() override { nvtxRangePop(); }

  [[nodiscard]] Event record() override {
    if (num_enqueued_ == 0) return {};
    if (!last_recorded_.state() || last_recorded_.state()->sequence() != num_enqueued_) {
      // Memory is given back in destructors, which record: what the driver says then is the stream's error too.
      attempt([&] {
        cudaEvent_t event = state_->take_event();
        last_recorded_ = Event(std::make_shared<CudaEvent>(state_, event, num_enqueued_));
        check(cudaEventRecord(event, stream_), "cudaEventRecord");
      });
    }
    return last_recorded_;
  }

  void wait(const Event& event, std::source_location /*site*/) override {
    if (!event.state() || waited_.is_known(event, state_.get())) return;
    ++num_enqueued_;
    attempt([&] {
      if (const auto* recorded = dynamic_cast<const CudaEvent*>(event.state().get())) {
        check(cudaStreamWaitEvent(stream_, recorded->native(), 0), "cudaStreamWaitEvent");
        recorded->rethrow_error();
      } else {
        event.wait_on_host();  // of a stream of the CPU
      }
    });
  }

  void synchronize() override {
    attempt([&] { check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); });
    state_->rethrow_error_up_to(std::numeric_limits<std::uint64_t>::max());
  }

  void drain_and_clear_error() noexcept override {
    static_cast<void>(cudaStreamSynchronize(stream_));
    state_->clear_error();
  }

 private:
  /// What goes wrong becomes the sticky error.
  template <class Action>
  void attempt(const Action& action) {
    try {
      cuda::stay_on(state_->gpu());
      action();
    } catch (...) {
      state_->fail(std::current_exception(), num_enqueued_);
    }
  }

  std::string name_;
  std::shared_ptr<StreamState> state_;
  cudaStream_t stream_ = nullptr;
  std::uint64_t num_enqueued_ = 0;
  std::string range_;
  Event last_recorded_;
  detail::WaitedEvents waited_;
};

}  // namespace

std::unique_ptr<Stream> make_cuda_stream(std::string name) { return std::make_unique<CudaStream>(std::move(name)); }

}  // namespace mica
