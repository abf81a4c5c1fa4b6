// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <deque>

#include "mica/device/pool.hpp"

namespace mica::fsdp {

/// Bounds how many units' unsharded storage is in flight. [Note: rate limiter]
/// A unit's storage is returned in two steps: release() keeps the buffer until the streams have passed `last_use`, and
/// make_room(), called before the next unit allocates, returns all but the youngest `num_held` to the pool. So the next gather
/// never has to wait for the computation it is meant to overlap (it would, if it reused the memory of the unit that is still
/// computing), and what is in flight depends on the host's order of calls only.
class RateLimiter {
 public:
  /// @param num_held  buffers held back: 1 overlaps one gather with one computation; 0 for inline streams, where a
  ///                  released buffer has no reader left.
  /// @param host_waits  make_room() blocks the host until the buffers it returns are unused, so that the host cannot
  ///                    run further ahead in a pass (limit_all_gathers). Between passes it never waits: streams reuse
  ///                    memory in their order, and a waiting host would leave the device idle.
  RateLimiter(std::size_t num_held, bool host_waits) : num_held_(num_held), host_waits_(host_waits) {}

  void release(Buffer buffer, Event last_use) {
    buffer.used_until(last_use);
    held_.push_back({std::move(buffer), std::move(last_use)});
    if (num_held_ == 0) make_room();
  }
  void make_room() {
    for (; held_.size() > num_held_; held_.pop_front()) {
      if (host_waits_) held_.front().last_use.wait_on_host();
    }
  }
  /// Returns everything, at the end of a pass.
  void flush() noexcept { held_.clear(); }

 private:
  struct Held {
    Buffer buffer;
    Event last_use;
  };

  std::size_t num_held_;
  bool host_waits_;
  std::deque<Held> held_;
};

}  // namespace mica::fsdp
