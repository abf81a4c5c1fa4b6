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

// [Note: staged waits] The GPU's stream and the worker wait for each other by numbers in page-locked memory. The worker
// makes no call of CUDA while it waits: behind a stream that waits for it, the host's launches may fill the GPU's queue, and
// then stand in a call whose locks another thread's call would wait for.

/// A number in page-locked memory that one side raises and the other waits for.
class Word {
 public:
  Word() : driver_(cuda::Driver::load()) {
    cuda::check(cudaHostAlloc(&memory_, sizeof(std::uint32_t), cudaHostAllocPortable | cudaHostAllocMapped), "cudaHostAlloc");
    *value() = 0;
  }
  ~Word() { static_cast<void>(cudaFreeHost(memory_)); }
  Word(const Word&) = delete;
  Word& operator=(const Word&) = delete;

  /// Any thread; numbers come in their order.
  void raise(std::uint32_t number) { std::atomic_ref(*value()).store(number, std::memory_order_release); }
  [[nodiscard]] bool has_reached(std::uint32_t number) const {
    return static_cast<std::int32_t>(std::atomic_ref(*value()).load(std::memory_order_acquire) - number) >= 0;
  }

  void enqueue_wait(cudaStream_t stream, std::uint32_t number) const {
    driver_.check(driver_.stream_wait_value32(stream, address(), number, CU_STREAM_WAIT_VALUE_GEQ), "cuStreamWaitValue32");
  }
  /// After all that the stream has by now, and visible to the host after it.
  void enqueue_raise(cudaStream_t stream, std::uint32_t number) const {
    driver_.check(driver_.stream_write_value32(stream, address(), number, CU_STREAM_WRITE_VALUE_DEFAULT), "cuStreamWriteValue32");
  }

 private:
  [[nodiscard]] std::uint32_t* value() const { return static_cast<std::uint32_t*>(memory_); }
  [[nodiscard]] CUdeviceptr address() const { return reinterpret_cast<CUdeviceptr>(memory_); }

  cuda::Driver driver_;
  void* memory_ = nullptr;
};

/// Where the GPU's stream has got to, for the worker.
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
      if (recorded_.is_complete()) break;  // or the GPU has failed, which is thrown
      ask_at = Clock::now() + kAskEvery;
    }
    cuda::rethrow_error(recorded_);
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr auto kPause = std::chrono::microseconds(20);
  /// A GPU that has failed raises no number.
  static constexpr auto kAskEvery = std::chrono::seconds(2);

  Event recorded_;
  std::shared_ptr<const Word> word_;
  std::uint32_t number_;
};

/// What the worker does last in a collective, whatever became of it: a stream that has failed still waits for events, so
/// it stands in the worker's order as an event. Tells the GPU's stream what went wrong, then lets it go on.
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
    // An MPI that takes a GPU's memory works with the GPU of the thread that calls it.
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
    if (options_.host_takes_gpu_memory) {  // in place, which the host's group leaves to the wire alone
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
  /// Page-locked memory of a tensor's size. Given back in host order: the stream's last copy is what the next owner waits for.
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
  /// The worker goes on when the GPU's stream has come here. What the worker failed with before is the stream's error by
  /// now: if the stream's owner has cleared it (abandon_step), the worker may work again; if not, it fails anew here.
  void follow(Stream& s) {
    if (worker_failed_.exchange(false)) worker_->drain_and_clear_error();
    const std::uint32_t number = ++num_departures_;
    try {  // not a task: those of a stream that has failed do not run, and the worker would wait
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
  /// The GPU's stream goes on when the worker has come here, which has touched the GPU's memory itself as `accesses` say.
  void arrive(Stream& s, std::initializer_list<Access> accesses) {
    const std::uint32_t number = ++num_arrivals_;
    worker_->wait(Event(std::make_shared<Arrival>(worker_->record(), s, arrivals_, number, worker_failed_)));
    s.annotate(call().label, call().bytes);
    s.submit(collective_name(call().kind), accesses, [this, number, stream = cuda::native(s)] { arrivals_->enqueue_wait(stream, number); });
  }

  std::unique_ptr<ProcessGroup> wire_, control_;  // the worker's, and the host's
  Pool& pinned_;
  StagedOptions options_;
  std::shared_ptr<Word> departures_, arrivals_;
  std::uint32_t num_departures_ = 0, num_arrivals_ = 0;
  std::atomic<bool> worker_failed_{false};
  std::unique_ptr<Stream> worker_;  // ends first: it finishes what it has
};

}  // namespace

std::unique_ptr<ProcessGroup> make_staged_group(std::unique_ptr<ProcessGroup> host, Pool& pinned, const StagedOptions& options) {
  auto control = host->duplicate(host->name() + "/host");
  return std::make_unique<StagedGroup>(std::move(host), std::move(control), pinned, options);
}

}  // namespace mica
