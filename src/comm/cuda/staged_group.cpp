// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <chrono>
#include <exception>
#include <thread>

#include "mica/comm/gpu_groups.hpp"
#include "mica/core/error.hpp"
#include "mica/device/cuda/driver.hpp"

#include "gpu_group.hpp"

namespace mica {
namespace {

using cuda::enqueue_memcpy;

// [Note: staged waits] The GPU's stream and the worker wait for each other through counters in page-locked memory. The worker
// polls them without CUDA calls: while a stream waits for the worker, the host may fill the GPU's launch queue and block in a CUDA
// call, holding locks that the worker's call would need. (It asks CUDA only every 2 s, in case the GPU has failed.)

/// A counter in page-locked memory that one side raises and the other waits for.
class Word {
 public:
  Word() : driver_(cuda::Driver::load()) {
    cuda::check(cudaHostAlloc(&memory_, sizeof(std::uint32_t), cudaHostAllocPortable | cudaHostAllocMapped), "cudaHostAlloc");
    *value() = 0;
  }
  ~Word() { static_cast<void>(cudaFreeHost(memory_)); }
  Word(const Word&) = delete;
  Word& operator=(const Word&) = delete;

  /// Any thread; numbers must ascend.
  void raise(std::uint32_t number) { std::atomic_ref(*value()).store(number, std::memory_order_release); }
  [[nodiscard]] bool has_reached(std::uint32_t number) const {
    return static_cast<std::int32_t>(std::atomic_ref(*value()).load(std::memory_order_acquire) - number) >= 0;
  }

  void enqueue_wait(cudaStream_t stream, std::uint32_t number) const {
    driver_.check(driver_.stream_wait_value32(stream, address(), number, CU_STREAM_WAIT_VALUE_GEQ), "cuStreamWaitValue32");
  }
  /// Raises it after all work enqueued so far, whose writes the host then sees.
  void enqueue_raise(cudaStream_t stream, std::uint32_t number) const {
    driver_.check(driver_.stream_write_value32(stream, address(), number, CU_STREAM_WRITE_VALUE_DEFAULT), "cuStreamWriteValue32");
  }

 private:
  [[nodiscard]] std::uint32_t* value() const { return static_cast<std::uint32_t*>(memory_); }
  [[nodiscard]] CUdeviceptr address() const { return reinterpret_cast<CUdeviceptr>(memory_); }

  cuda::Driver driver_;
  void* memory_ = nullptr;
};

/// Makes the worker wait until the GPU's stream has reached this point.
class Departure final : public EventState {
 public:
  Departure(Event recorded, std::shared_ptr<const Word> word, std::uint32_t number)
      : recorded_(std::move(recorded)), word_(std::move(word)), number_(number) {}
  [[nodiscard]] bool is_complete() const override { return word_->has_reached(number_); }
  void wait_on_host() override {
    auto ask_at = Clock::now() + kAskEvery;
    while (!word_->has_reached(number_)) {
      std::this_thread::sleep_for(kPause);
      if (Clock::now() < ask_at) continue;
      if (recorded_.is_complete()) break;  // throws if the GPU has failed
      ask_at = Clock::now() + kAskEvery;
    }
    cuda::rethrow_error(recorded_);
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr auto kPause = std::chrono::microseconds(20);
  /// A GPU that has failed never raises the counter.
  static constexpr auto kAskEvery = std::chrono::seconds(2);

  Event recorded_;
  std::shared_ptr<const Word> word_;
  std::uint32_t number_;
};

/// The end of a collective on the worker. It is an event, not a task, because a failed stream skips tasks but still waits for events.
/// Passes the worker's error to the GPU's stream, then lets that continue.
class Arrival final : public EventState {
 public:
  Arrival(Event so_far, Stream& stream, std::shared_ptr<Word> word, std::uint32_t number, std::atomic<bool>& worker_failed)
      : so_far_(std::move(so_far)), stream_(stream), word_(std::move(word)), number_(number), worker_failed_(worker_failed) {}
  [[nodiscard]] bool is_complete() const override { return so_far_.is_complete(); }
  void wait_on_host() override {
    try {
      so_far_.wait_on_host();
    } catch (...) {
      worker_failed_ = true;
      stream_.fail(std::current_exception());
    }
    word_->raise(number_);
  }

 private:
  Event so_far_;
  Stream& stream_;
  std::shared_ptr<Word> word_;
  std::uint32_t number_;
  std::atomic<bool>& worker_failed_;
};

class StagedGroup final : public cuda::GpuGroup {
 public:
  StagedGroup(std::unique_ptr<ProcessGroup> wire, std::unique_ptr<ProcessGroup> control, Pool& pinned, const StagedOptions& options)
      : GpuGroup(*wire),
        wire_(std::move(wire)),
        control_(std::move(control)),
        pinned_(pinned),
        options_(options),
        departures_(std::make_shared<Word>()),
        arrivals_(std::make_shared<Word>()),
        worker_(make_cpu_stream("staged", StreamMode::threaded)) {
    // A CUDA-aware MPI uses the current GPU of the calling thread.
    worker_->submit("use gpu", {}, [gpu = cuda::current_gpu()] { cuda::stay_on(gpu); });
  }

  [[nodiscard]] std::unique_ptr<ProcessGroup> duplicate(std::string name) override {
    auto wire = wire_->duplicate(name);
    auto control = control_->duplicate(name + "/host");
    return std::make_unique<StagedGroup>(std::move(wire), std::move(control), pinned_, options_);
  }
  [[nodiscard]] std::unique_ptr<ProcessGroup> split(int color, int key, std::string name) override {
    auto wire = wire_->split(color, key, name);
    auto control = control_->split(color, key, name + "/host");
    return std::make_unique<StagedGroup>(std::move(wire), std::move(control), pinned_, options_);
  }
  [[nodiscard]] ProcessGroup& on_host() override { return *control_; }
  [[nodiscard]] double busy_ms() const override { return wire_->busy_ms(); }
  [[nodiscard]] std::string describe_pending() const override { return wire_->describe_pending(); }

 protected:
  void end_waiting(const std::string& why) override {
    wire_->abort(why);
    control_->abort(why);
  }

  void enqueue_all_gather(Stream& s, ConstTensorView shard, TensorView full) override {
    if (options_.host_takes_gpu_memory) {  // in place: the host's group then copies nothing itself
      const TensorView mine = full.slice(rank() * shard.numel(), shard.numel());
      if (shard.data != mine.data) enqueue_memcpy(s, "own slice", shard, mine);
      follow(s);
      wire_->all_gather(*worker_, call().label.c_str(), mine, full);
      return arrive(s, {writes(full)});
    }
    const Staging host(pinned_, s, full);
    const TensorView own = host.view.slice(rank() * shard.numel(), shard.numel());
    out(s, shard, own);
    wire_->all_gather(*worker_, call().label.c_str(), own, host.view);
    in(s, host.view, full);
  }
  void enqueue_reduce_scatter(Stream& s, ConstTensorView full, TensorView shard) override {
    const Staging host(pinned_, s, full);
    const TensorView own = host.view.slice(rank() * shard.numel(), shard.numel());
    out(s, full, host.view);
    wire_->reduce_scatter(*worker_, call().label.c_str(), host.view, own);
    in(s, own, shard);
  }
  void enqueue_all_reduce(Stream& s, TensorView data, ReduceOp op) override {
    const Staging host(pinned_, s, data);
    out(s, data, host.view);
    wire_->all_reduce(*worker_, call().label.c_str(), host.view, op);
    in(s, host.view, data);
  }
  void enqueue_all_to_all(Stream& s, ConstTensorView sent, TensorView received) override {
    const Staging mine(pinned_, s, sent), theirs(pinned_, s, received);
    out(s, sent, mine.view);
    wire_->all_to_all(*worker_, call().label.c_str(), mine.view, theirs.view);
    in(s, theirs.view, received);
  }
  void enqueue_broadcast(Stream& s, TensorView data, int root) override {
    if (options_.host_takes_gpu_memory) {
      follow(s);
      wire_->broadcast(*worker_, call().label.c_str(), data, root);
      return arrive(s, {root == rank() ? reads(data) : writes(data)});
    }
    const Staging host(pinned_, s, data);
    out(s, data, host.view);
    wire_->broadcast(*worker_, call().label.c_str(), host.view, root);
    in(s, host.view, data);
  }
  void enqueue_barrier(Stream& s) override {
    follow(s);
    wire_->barrier(*worker_, call().label.c_str());
    arrive(s, {});
  }

 private:
  /// Page-locked memory for a tensor. Freed in host order: the next owner waits for the stream's last copy.
  struct Staging {
    Staging(Pool& pinned, Stream& s, ConstTensorView like)
        : buffer(pinned.allocate(like.bytes(), MemoryRole::communication, s)), view{buffer.data(), like.shape, like.dtype} {}
    Buffer buffer;
    TensorView view;
  };

  void out(Stream& s, ConstTensorView device, TensorView host) {
    enqueue_memcpy(s, "stage out", device, host);
    follow(s);
  }
  /// Makes the worker wait until the GPU's stream has reached this point. An earlier failure of the worker is cleared, because the GPU's
  /// stream has that error by now. If the stream's owner has not cleared it there (abandon_step), the worker fails again here.
  void follow(Stream& s) {
    if (worker_failed_.exchange(false)) worker_->drain_and_clear_error();
    const std::uint32_t number = ++num_departures_;
    try {  // not a task: a failed stream skips tasks, and the worker would wait for ever
      departures_->enqueue_raise(cuda::native(s), number);
    } catch (...) {
      s.fail(std::current_exception());
    }
    worker_->wait(Event(std::make_shared<Departure>(s.record(), departures_, number)));
  }
  void in(Stream& s, ConstTensorView host, TensorView device) {
    arrive(s, {});
    enqueue_memcpy(s, "stage in", host, device);
  }
  /// Makes the GPU's stream wait until the worker has reached this point. @param accesses  of the worker to GPU memory
  void arrive(Stream& s, std::initializer_list<Access> accesses) {
    const std::uint32_t number = ++num_arrivals_;
    worker_->wait(Event(std::make_shared<Arrival>(worker_->record(), s, arrivals_, number, worker_failed_)));
    s.annotate(call().label, call().bytes);
    s.submit(collective_name(call().kind), accesses, [this, number, stream = cuda::native(s)] { arrivals_->enqueue_wait(stream, number); });
  }

  std::unique_ptr<ProcessGroup> wire_, control_;  // used on the worker, and on the host
  Pool& pinned_;
  StagedOptions options_;
  std::shared_ptr<Word> departures_, arrivals_;
  std::uint32_t num_departures_ = 0, num_arrivals_ = 0;
  std::atomic<bool> worker_failed_{false};
  std::unique_ptr<Stream> worker_;  // destroyed first: finishes its work
};

}  // namespace

std::unique_ptr<ProcessGroup> make_staged_group(std::unique_ptr<ProcessGroup> host, Pool& pinned, const StagedOptions& options) {
  auto control = host->duplicate(host->name() + "/host");
  return std::make_unique<StagedGroup>(std::move(host), std::move(control), pinned, options);
}

}  // namespace mica
