// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "mica/device/stream.hpp"

namespace mica {

/// Adds up how long stretches of a CPU stream took: from start() to stop(), both enqueued on the same stream. They cost a microsecond each
/// and add no ordering.
class Stopwatch {
 public:
  void start(Stream& stream);
  void stop(Stream& stream);
  /// Milliseconds of the stretches that the stream has passed. Any thread may ask.
  [[nodiscard]] double ms() const;

 private:
  struct Times {
    std::int64_t started_ns = 0;  // of the stretch under way; the stream's thread alone
    std::atomic<std::int64_t> total_ns{0};
  };
  std::shared_ptr<Times> times_ = std::make_shared<Times>();  // shared with tasks that have not run
};

/// A CPU stream whose waits for events of other streams are timed.
/// @param waits  outlives it
[[nodiscard]] std::unique_ptr<Stream> time_waits(std::unique_ptr<Stream> inner, Stopwatch& waits);

}  // namespace mica
