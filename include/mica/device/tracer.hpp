// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "mica/device/stream.hpp"

namespace mica {

/// A point in a stream's order whose time is known once the stream has passed it.
class TimeMark {
 public:
  virtual ~TimeMark() = default;
  TimeMark(const TimeMark&) = delete;
  TimeMark& operator=(const TimeMark&) = delete;
  /// Nanoseconds of the steady clock. The stream must have passed it.
  [[nodiscard]] virtual std::int64_t ns() const = 0;

 protected:
  TimeMark() = default;
};

/// Marks points of one stream.
class StreamClock {
 public:
  virtual ~StreamClock() = default;
  StreamClock(const StreamClock&) = delete;
  StreamClock& operator=(const StreamClock&) = delete;
  [[nodiscard]] virtual std::shared_ptr<const TimeMark> mark(Stream& stream) = 0;

 protected:
  StreamClock() = default;
};

/// For streams of either device. A GPU's clock is synchronised with the host's here, which waits for the stream once.
[[nodiscard]] std::unique_ptr<StreamClock> make_clock(Stream& stream);

/// A task that ran while a tracer recorded.
struct TracedTask {
  std::string name;                       ///< as submitted, without a label
  std::int64_t accessed_bytes = 0;        ///< of what it reads and writes, its scratch memory included
  std::int64_t begin_ns = 0, end_ns = 0;  ///< of the steady clock
};

/// Records when the tasks of a rank's streams ran, for Perfetto and chrome://tracing. [Note: traces]
/// Each stream is a row: tasks by their names (collectives with unit and bytes), waits for other streams, and above them the
/// units' forward and backward, and what is recomputed. When it is not recording it costs one branch per task. While recording, tasks are
/// surrounded by marks, which cost microseconds each but add no ordering. One host thread.
class Tracer {
 public:
  /// @param rank  the process number in the trace.
  explicit Tracer(int rank) : rank_(rank) {}

  /// A stream that is recorded between start() and stop(). The tracer outlives it.
  [[nodiscard]] std::unique_ptr<Stream> wrap(std::unique_ptr<Stream> inner);

  void start();
  /// Waits for all streams. Their errors are reported to the next caller that waits for them.
  void stop();
  /// The tasks that were recorded, without waits and ranges, in the order in which they were enqueued.
  [[nodiscard]] std::vector<TracedTask> tasks() const;
  /// What was recorded, as Chrome's trace event format (JSON).
  [[nodiscard]] std::string to_json() const;

 private:
  friend class TracedStream;
  struct Slice {
    std::size_t row = 0;
    std::string name, label;
    const char* kind = "";            ///< "task", "wait", "range"
    std::int64_t bytes = 0;           ///< as annotated; 0: unknown
    std::int64_t accessed_bytes = 0;  ///< of a task
    std::shared_ptr<const TimeMark> begin, end;
  };

  int rank_;
  bool recording_ = false;
  std::vector<class TracedStream*> streams_;  // null: destroyed
  std::vector<std::string> rows_;
  std::vector<Slice> slices_;
};

}  // namespace mica
