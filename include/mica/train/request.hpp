// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>

#include "mica/train/time_limit.hpp"

namespace mica::train {

/// What a rank wants after a step. All ranks do the most urgent of their requests: the largest.
enum class Request : std::uint8_t { none, save, look, stop };

/// What the clocks ask for: a stop in time for the limit, else a save once checkpoint.interval_minutes are over.
/// @param num_saves  of a stop: its own, and those under way
Request request_of_clocks(const TimeLimit& limit, double interval_minutes, TimeLimit::Seconds since_start, TimeLimit::Seconds since_save,
                          int num_saves = 1);

/// After which steps the ranks agree on a request: about ten times a second, so that it costs nothing, and at steps that all of them
/// know. After the first step of a launch always. The caller reads the clock.
class RequestPace {
 public:
  using Clock = std::chrono::steady_clock;
  /// @param last_done  the step that the launch goes on from, 0 for none.
  RequestPace(std::int64_t last_done, Clock::time_point now) : agreed_step_(last_done), next_step_(last_done + 1), agreed_at_(now) {}

  [[nodiscard]] bool is_due(std::int64_t step) const { return step >= next_step_; }
  /// This rank's part of an agreement. The maximum over all ranks carries the most urgent request and, of the ranks that have it, the time
  /// of the slowest rank's steps since the last agreement.
  [[nodiscard]] std::int64_t encode(Request mine, std::int64_t step, Clock::time_point now) const;
  /// Takes the maximum over all ranks. @returns what all do
  Request agree(std::int64_t maximum, std::int64_t step, Clock::time_point now);

 private:
  std::int64_t agreed_step_, next_step_;
  Clock::time_point agreed_at_;
};

}  // namespace mica::train
