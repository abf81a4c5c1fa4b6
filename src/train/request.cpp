// SPDX-License-Identifier: Apache-2.0
#include "mica/train/request.hpp"

#include <algorithm>

namespace mica::train {
namespace {

/// The low bits hold microseconds per step, the bits from here on the request.
constexpr std::int64_t kRequest = std::int64_t{1} << 56;
constexpr std::int64_t kPauseUs = 100'000;
constexpr std::int64_t kMaxSteps = 1000;

}  // namespace

Request request_of_clocks(const TimeLimit& limit, double interval_minutes, TimeLimit::Seconds since_start, TimeLimit::Seconds since_save,
                          int num_saves) {
  if (limit.is_near(since_start, num_saves)) return Request::stop;
  if (interval_minutes > 0 && since_save.count() >= 60 * interval_minutes) return Request::save;
  return Request::none;
}

std::int64_t RequestPace::encode(Request mine, std::int64_t step, Clock::time_point now) const {
  const std::int64_t us = std::chrono::duration_cast<std::chrono::microseconds>(now - agreed_at_).count();
  // A second time after the same step: the time since went into a save, not into a step.
  const std::int64_t us_a_step = step == agreed_step_ ? agreed_us_a_step_ : us / (step - agreed_step_);
  return static_cast<std::int64_t>(mine) * kRequest + std::min(us_a_step, kRequest - 1);
}

Request RequestPace::agree(std::int64_t maximum, std::int64_t step, Clock::time_point now) {
  agreed_at_ = now;
  agreed_step_ = step;
  agreed_us_a_step_ = maximum % kRequest;
  next_step_ = step + std::clamp<std::int64_t>(kPauseUs / std::max<std::int64_t>(1, agreed_us_a_step_), 1, kMaxSteps);
  return static_cast<Request>(maximum / kRequest);
}

}  // namespace mica::train
