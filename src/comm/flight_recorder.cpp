// SPDX-License-Identifier: Apache-2.0
#include "mica/comm/flight_recorder.hpp"

#include <algorithm>

#include <fmt/format.h>

namespace mica {
namespace {

std::string one_line(const FlightEntry& e, FlightEntry::Clock::time_point now) {
  const auto seconds_since = [&](FlightEntry::Clock::time_point t) { return std::chrono::duration<double>(now - t).count(); };
  std::string text = fmt::format("#{} {} '{}' ({} bytes) ", e.sequence, collective_name(e.kind), e.label.data(), e.bytes);
  switch (e.state) {
    case CollectiveState::enqueued:
      return text + fmt::format("enqueued {:.1f} s ago", seconds_since(e.enqueued_at));
    case CollectiveState::started:
      return text + fmt::format("running for {:.1f} s", seconds_since(e.started_at));
    case CollectiveState::done:
      return text + fmt::format("done {:.1f} s ago", seconds_since(e.ended_at));
    case CollectiveState::failed:
      return text + fmt::format("failed {:.1f} s ago", seconds_since(e.ended_at));
    case CollectiveState::skipped:
      return text + "skipped after an earlier failure";
  }
  return text;
}

bool is_pending(const FlightEntry& e) {
  return e.sequence != 0 && (e.state == CollectiveState::enqueued || e.state == CollectiveState::started);
}

}  // namespace

std::int64_t FlightRecorder::enqueue(Collective kind, const std::string& label, std::int64_t bytes) {
  const std::lock_guard lock(mutex_);
  FlightEntry& e = ring_[static_cast<std::size_t>(last_) % kCapacity];
  e = {};
  e.sequence = ++last_;
  e.kind = kind;
  std::copy_n(label.data(), std::min(label.size(), e.label.size() - 1), e.label.data());
  e.bytes = bytes;
  e.enqueued_at = FlightEntry::Clock::now();
  return last_;
}

void FlightRecorder::start(std::int64_t sequence) {
  const std::lock_guard lock(mutex_);
  for (FlightEntry& e : ring_) {
    if (e.sequence < sequence && e.state == CollectiveState::enqueued) e.state = CollectiveState::skipped;
  }
  if (FlightEntry* e = find(sequence)) {
    e->state = CollectiveState::started;
    e->started_at = FlightEntry::Clock::now();
  }
}

void FlightRecorder::end(std::int64_t sequence, bool succeeded) {
  const std::lock_guard lock(mutex_);
  if (FlightEntry* e = find(sequence)) {
    e->state = succeeded ? CollectiveState::done : CollectiveState::failed;
    e->ended_at = FlightEntry::Clock::now();
  }
}

std::vector<FlightEntry> FlightRecorder::entries() const {
  const std::lock_guard lock(mutex_);
  std::vector<FlightEntry> all;
  for (std::size_t i = 0; i < kCapacity; ++i) {
    const FlightEntry& e = ring_[(static_cast<std::size_t>(last_) + i) % kCapacity];
    if (e.sequence != 0) all.push_back(e);
  }
  return all;
}

std::string FlightRecorder::describe_pending() const {
  const std::vector<FlightEntry> all = entries();
  const auto now = FlightEntry::Clock::now();
  std::string text;
  for (const FlightEntry& e : all) {
    if (!is_pending(e)) continue;
    if (!text.empty()) text += "; ";
    text += one_line(e, now);
  }
  if (!text.empty()) return text;
  return all.empty() ? "nothing was ever enqueued" : "nothing is pending; last was " + one_line(all.back(), now);
}

FlightEntry* FlightRecorder::find(std::int64_t sequence) {
  if (sequence <= 0) return nullptr;
  FlightEntry& e = ring_[static_cast<std::size_t>(sequence - 1) % kCapacity];
  return e.sequence == sequence ? &e : nullptr;
}

}  // namespace mica
