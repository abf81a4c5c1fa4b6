// SPDX-License-Identifier: Apache-2.0
#include "../gpu_clock.hpp"

#include "mica/core/steady_ns.hpp"
#include "mica/device/cuda/check.hpp"

namespace mica::detail {
namespace {

using cuda::check;

class TimedEvent {
 public:
  TimedEvent() { check(cudaEventCreateWithFlags(&event_, cudaEventDefault), "cudaEventCreateWithFlags"); }
  ~TimedEvent() { static_cast<void>(cudaEventDestroy(event_)); }
  TimedEvent(const TimedEvent&) = delete;
  TimedEvent& operator=(const TimedEvent&) = delete;
  [[nodiscard]] cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

/// One moment on the GPU's clock and on the host's.
struct Anchor {
  TimedEvent event;
  std::int64_t host_ns = 0;
};

class GpuMark final : public TimeMark {
 public:
  explicit GpuMark(std::shared_ptr<const Anchor> anchor) : anchor_(std::move(anchor)) {}
  [[nodiscard]] std::int64_t ns() const override {
    float ms = 0;
    // Not recorded, since the stream had failed: then it took no time.
    if (cudaEventElapsedTime(&ms, anchor_->event.get(), event_.get()) != cudaSuccess) static_cast<void>(cudaGetLastError());
    return anchor_->host_ns + static_cast<std::int64_t>(static_cast<double>(ms) * 1e6);
  }
  [[nodiscard]] cudaEvent_t event() const { return event_.get(); }

 private:
  std::shared_ptr<const Anchor> anchor_;
  TimedEvent event_;
};

class GpuClock final : public StreamClock {
 public:
  explicit GpuClock(Stream& stream) {
    auto anchor = std::make_shared<Anchor>();
    check(cudaStreamSynchronize(cuda::native(stream)), "cudaStreamSynchronize");
    check(cudaEventRecord(anchor->event.get(), cuda::native(stream)), "cudaEventRecord");
    check(cudaEventSynchronize(anchor->event.get()), "cudaEventSynchronize");
    anchor->host_ns = steady_ns();
    anchor_ = std::move(anchor);
  }
  [[nodiscard]] std::shared_ptr<const TimeMark> mark(Stream& stream) override {
    auto mark = std::make_shared<GpuMark>(anchor_);
    stream.submit("mark", {},
                  [event = mark->event(), native = cuda::native(stream)] { check(cudaEventRecord(event, native), "cudaEventRecord"); });
    return mark;
  }

 private:
  std::shared_ptr<const Anchor> anchor_;
};

}  // namespace

std::unique_ptr<StreamClock> make_gpu_clock(Stream& stream) { return std::make_unique<GpuClock>(stream); }

}  // namespace mica::detail
