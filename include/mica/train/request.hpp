// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>

#include "mica/train/time_limit.hpp"

namespace mica::train {

/// What a rank wants after a step. All ranks follow the most urgent request, which is the largest value.
enum class Request : std::uint8_t { none, save, look, stop };

/// What the clocks ask for: a stop, if the limit is near; else a save, if checkpoint.interval_minutes have passed.
/// @param num_saves  that a stop needs time for: its own and the one under way
Request request_of_clocks(const TimeLimit& limit, double interval_minutes, TimeLimit::Seconds since_start, TimeLimit::Seconds since_save,
                          int num_saves = 1);

/// Decides after which steps the ranks agree on a request: after the first step of a launch, then about ten times a second, which costs
/// next to nothing. All ranks choose the same steps. The caller reads the clock.
class RequestPace {
 public:
  using Clock = std::chrono::steady_clock;
  /// @param last_done  the last step done before this launch; 0: none
  RequestPace(std::int64_t last_done, Clock::time_point now) : agreed_step_(last_done), next_step_(last_done + 1), agreed_at_(now) {}

  [[nodiscard]] bool is_due(std::int64_t step) const { return step >= next_step_; }
  /// This rank's contribution to an agreement. The maximum over all ranks holds the most urgent request and, among the ranks that made it,
  /// the largest time per step since the last agreement. A second agreement after the same step (after a save) keeps the first one's time.
  [[nodiscard]] std::int64_t encode(Request mine, std::int64_t step, Clock::time_point now) const;
  /// Takes the maximum over all ranks. @returns the request that all ranks follow
  Request agree(std::int64_t maximum, std::int64_t step, Clock::time_point now);

 private:
  std::int64_t agreed_step_, next_step_;
  std::int64_t agreed_us_a_step_ = 0;
  Clock::time_point agreed_at_;
};

}  // namespace mica::train
