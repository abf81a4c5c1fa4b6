// SPDX-License-Identifier: Apache-2.0
#include "mica/train/time_limit.hpp"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <string_view>

#include <fmt/chrono.h>

#include "mica/core/error.hpp"
#include "mica/train/progress.hpp"

namespace mica::train {
namespace {

using SystemClock = std::chrono::system_clock;

constexpr double kMargin = 1.25;

std::string time_text(SystemClock::time_point time) {
  return fmt::format("{:%Y-%m-%d %H:%M:%S} UTC", fmt::gmtime(SystemClock::to_time_t(time)));
}

SystemClock::time_point parse_end(std::string_view text) {
  std::int64_t seconds = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  const bool is_number = error == std::errc{} && rest == text.data() + text.size();
  constexpr std::int64_t kYear9999 = 253'402'300'799;
  require<ConfigError>(is_number && seconds > 0 && seconds <= kYear9999,
                       "the environment variable SLURM_JOB_END_TIME is '{}', expected seconds since 1970, as Slurm sets it: unset it, and "
                       "limit the run with train.max_hours",
                       text);
  return SystemClock::time_point(std::chrono::seconds(seconds));
}

}  // namespace

TimeLimit::TimeLimit(double max_hours, const char* slurm_job_end_time, SystemClock::time_point start) {
  const auto take = [&](Seconds left, const char* reason) {
    if (left >= left_at_start_) return;
    left_at_start_ = left;
    reason_ = reason;
  };
  if (max_hours > 0) take(Seconds(3600 * max_hours), "train.max_hours");
  if (slurm_job_end_time != nullptr) {
    const SystemClock::time_point end = parse_end(slurm_job_end_time);
    if (end > start) {
      take(end - start, "SLURM_JOB_END_TIME");
    } else {
      warning_ = fmt::format(
          "SLURM_JOB_END_TIME is ignored: it says that this job ended at {}, and this host's clock says {}. Was the time limit raised "
          "since, or is the clock wrong? train.max_hours limits the run",
          time_text(end), time_text(start));
    }
  }
  if (is_set()) end_ = start + std::chrono::duration_cast<SystemClock::duration>(left_at_start_);
}

std::string TimeLimit::description(Seconds since_start) const {
  if (!is_set()) return "";
  return fmt::format("must end by {}, in {} ({}); saves and stops in time", time_text(end_),
                     format_duration(std::max(0.0, left(since_start).count())), reason_);
}

std::string TimeLimit::reason_to_stop(Seconds since_start, int num_saves) const {
  return fmt::format("{} left before the limit ({}), and a step and {} may take {}",
                     format_duration(std::max(0.0, left(since_start).count())), reason_,
                     num_saves == 1 ? "a save" : fmt::format("{} saves", num_saves), format_duration(reserve(num_saves).count()));
}

void TimeLimit::note_steps(Seconds time) { longest_steps_ = std::max(longest_steps_, time); }

void TimeLimit::note_save(Seconds time) { longest_save_ = std::max(longest_save_, time); }

TimeLimit::Seconds TimeLimit::reserve(int num_saves) const {
  const Seconds save = longest_save_.count() > 0 ? longest_save_ : estimated_save_;
  return kMargin * (longest_steps_ + num_saves * save) + kEndOfJob;
}

}  // namespace mica::train
