// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <initializer_list>
#include <memory>
#include <source_location>
#include <span>
#include <string>
#include <string_view>

#include "mica/device/event.hpp"

namespace mica {

enum class DeviceKind : std::uint8_t { cpu, cuda };
/// "the CPU", "the GPU".
[[nodiscard]] std::string device_kind_name(DeviceKind kind);

/// One range of memory that a task reads or writes. Declared with each task, so that tests' checking streams can tell whether
/// another stream's access is ordered against it.
struct Access {
  enum class Mode : std::uint8_t { read, write };
  const void* data = nullptr;
  std::int64_t bytes = 0;
  Mode mode = Mode::read;
};
[[nodiscard]] inline Access reads(const void* data, std::int64_t bytes) { return {data, bytes, Access::Mode::read}; }
[[nodiscard]] inline Access writes(const void* data, std::int64_t bytes) { return {data, bytes, Access::Mode::write}; }

/// An in-order queue of work on one device: [Note: streams]
/// - tasks of one stream run one after another in the order they were enqueued;
/// - tasks of two streams are ordered only by record() and wait();
/// - enqueueing never blocks the host (the inline CPU stream runs the task at once, with the same ordering contract);
/// - the first exception of a task is sticky: later tasks are skipped, the next synchronize() or
///   wait_on_host() rethrows it, and a stream that waits for an event of a failed stream fails with the same error.
/// - a task owns no Buffer (it captures views): memory is freed by the host, in host order;
/// - destroying a stream first runs what was enqueued.
/// One host thread enqueues; a stream outlives the buffers made with it.
class Stream {
 public:
  using Task = std::function<void()>;

  virtual ~Stream() = default;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  [[nodiscard]] virtual DeviceKind device() const = 0;
  [[nodiscard]] virtual const std::string& name() const = 0;
  /// The device runtime's own handle; null on a CPU.
  [[nodiscard]] virtual void* native() const { return nullptr; }

  /// Enqueues a host function. @param what  a literal naming the task, for traces and errors.
  virtual void submit(const char* what, std::span<const Access> accesses, Task task) = 0;
  void submit(const char* what, std::initializer_list<Access> accesses, Task task) {
    submit(what, std::span<const Access>(accesses.begin(), accesses.size()), std::move(task));
  }

  /// Makes `error` the stream's sticky error, as if a task had thrown it: for work that runs elsewhere. On a GPU's stream from
  /// any thread, else from the host's.
  virtual void fail(std::exception_ptr error) {
    submit("failed elsewhere", {}, [error = std::move(error)] { std::rethrow_exception(error); });
  }

  // For traces and profilers (tracer.hpp), and for plans.
  /// Label and bytes of the next task: "h.3", 4096.
  virtual void annotate(std::string_view /*label*/, std::int64_t /*bytes*/) {}
  /// The phase in which a checkpointed module runs its forward again inside its backward.
  static constexpr const char* kRecomputation = "recomputation";
  /// Tasks until end_range() belong to `owner`'s `phase` (a literal): "h.3", "forward". Ranges nest.
  virtual void begin_range(std::string_view /*owner*/, const char* /*phase*/) {}
  virtual void end_range() {}

  /// The point after everything enqueued so far.
  [[nodiscard]] virtual Event record() = 0;
  /// Tasks enqueued from now on start after `event`. The host does not block (an inline stream blocks it on an event of a
  /// threaded one). @param site  the caller: names the wait in tests that leave it out (disturbed_stream.hpp).
  virtual void wait(const Event& event, std::source_location site = std::source_location::current()) = 0;
  /// Blocks the host until the stream is idle. @throws its sticky error.
  virtual void synchronize() = 0;
  /// Waits until idle and clears the sticky error; events recorded so far no longer throw. For abandon_step() only, through
  /// drain_and_clear_errors() if streams wait for each other.
  virtual void drain_and_clear_error() noexcept = 0;

 protected:
  Stream() = default;
};

/// How CPU streams run their tasks (docs/design.md, The schedule).
enum class StreamMode : std::uint8_t {
  threaded,  ///< a worker thread, asleep while idle
  inlined,   ///< the task runs inside submit()
};

/// Drains all of a rank's streams before it clears the first error: a stream that still waits for an event of a failed one must
/// fail as well, and not run its tasks on incomplete data.
void drain_and_clear_errors(std::span<Stream* const> streams) noexcept;

/// @param name  shown in traces, errors and the worker's thread name.
[[nodiscard]] std::unique_ptr<Stream> make_cpu_stream(std::string name, StreamMode mode);

}  // namespace mica
