// SPDX-License-Identifier: Apache-2.0
#include "mica/comm/flight_recorder.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "mica/core/steady_ns.hpp"

namespace mica {
namespace {

using detail::kRelaxed;

FlightEntry::Clock::time_point time_of(std::int64_t ns) {
  return FlightEntry::Clock::time_point(std::chrono::duration_cast<FlightEntry::Clock::duration>(std::chrono::nanoseconds(ns)));
}

std::string one_line(const FlightEntry& e, FlightEntry::Clock::time_point now) {
  const auto seconds_since = [&](FlightEntry::Clock::time_point t) { return std::chrono::duration<double>(now - t).count(); };
  std::string text = fmt::format("#{} {} '{}' ({} bytes) ", e.sequence, collective_name(e.kind), e.label, e.bytes);
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

bool is_pending(const FlightEntry& e) { return e.state == CollectiveState::enqueued || e.state == CollectiveState::started; }

}  // namespace

FlightRecorder::FlightRecorder(std::string name)
    : name_(std::move(name)), log_(FlightLog::make_private(kCapacity, 1, 1)), group_(log_->add_group(name_, {})) {}

FlightRecorder::~FlightRecorder() { log_->remove_group(*group_); }

void FlightRecorder::publish(const std::vector<int>& members) {
  std::shared_ptr<FlightLog> log = FlightLog::of_process();
  FlightGroup* const group = log == nullptr || members.empty() ? nullptr : log->add_group(name_, members);
  if (group == nullptr) return;
  group_ = group;
  log_ = std::move(log);
}

std::int64_t FlightRecorder::enqueue(Collective kind, const std::string& label, std::int64_t bytes) {
  const std::int64_t ticket = log_->head().num_events.fetch_add(1, kRelaxed) + 1;
  const std::int64_t sequence = ++last_;
  FlightEvent& e = log_->events()[static_cast<std::size_t>(ticket - 1) % log_->events().size()];
  e.ticket.store(0, kRelaxed);
  std::atomic_thread_fence(std::memory_order_release);
  e.sequence.store(sequence, kRelaxed);
  e.group.store(log_->index_of(*group_), kRelaxed);
  e.kind.store(static_cast<std::uint8_t>(kind), kRelaxed);
  e.bytes.store(bytes, kRelaxed);
  e.state.store(static_cast<std::uint8_t>(CollectiveState::enqueued), kRelaxed);
  e.enqueued_ns.store(steady_ns(), kRelaxed);
  e.started_ns.store(0, kRelaxed);
  e.ended_ns.store(0, kRelaxed);
  e.label.set(label);
  e.ticket.store(ticket, std::memory_order_release);
  tickets_[static_cast<std::size_t>(sequence) % tickets_.size()].store(ticket, std::memory_order_release);
  group_->enqueued.store(sequence, std::memory_order_release);
  return sequence;
}

void FlightRecorder::start(std::int64_t sequence) {
  for (std::int64_t earlier = last_started_ + 1; earlier < sequence; ++earlier) {
    FlightEvent* const e = find(earlier);
    if (e != nullptr && e->state.load(kRelaxed) == static_cast<std::uint8_t>(CollectiveState::enqueued)) {
      e->state.store(static_cast<std::uint8_t>(CollectiveState::skipped), kRelaxed);
    }
  }
  last_started_ = sequence;
  const std::int64_t now = steady_ns();
  if (FlightEvent* const e = find(sequence)) {
    e->started_ns.store(now, kRelaxed);
    e->state.store(static_cast<std::uint8_t>(CollectiveState::started), kRelaxed);
  }
  group_->changed_ns.store(now, kRelaxed);
  group_->started.store(sequence, std::memory_order_release);
}

void FlightRecorder::end(std::int64_t sequence, bool succeeded) {
  const std::int64_t now = steady_ns();
  if (FlightEvent* const e = find(sequence)) {
    e->ended_ns.store(now, kRelaxed);
    e->state.store(static_cast<std::uint8_t>(succeeded ? CollectiveState::done : CollectiveState::failed), kRelaxed);
  }
  if (last_started_ < sequence) group_->starts_unseen.store(1, kRelaxed);
  group_->changed_ns.store(now, kRelaxed);
  group_->ended.store(sequence, std::memory_order_release);
}

std::vector<FlightEntry> FlightRecorder::entries() const {
  std::vector<FlightEntry> all;
  const std::int32_t own = log_->index_of(*group_);
  for (const FlightEvent& e : log_->events()) {
    const std::int64_t ticket = e.ticket.load(std::memory_order_acquire);
    if (ticket == 0 || e.group.load(kRelaxed) != own) continue;
    FlightEntry entry{.sequence = e.sequence.load(kRelaxed),
                      .kind = static_cast<Collective>(e.kind.load(kRelaxed)),
                      .label = e.label.get(),
                      .bytes = e.bytes.load(kRelaxed),
                      .state = static_cast<CollectiveState>(e.state.load(kRelaxed)),
                      .enqueued_at = time_of(e.enqueued_ns.load(kRelaxed)),
                      .started_at = time_of(e.started_ns.load(kRelaxed)),
                      .ended_at = time_of(e.ended_ns.load(kRelaxed))};
    std::atomic_thread_fence(std::memory_order_acquire);
    if (e.ticket.load(kRelaxed) == ticket) all.push_back(std::move(entry));  // else it was overwritten while it was read
  }
  std::ranges::sort(all, {}, &FlightEntry::sequence);
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

FlightEvent* FlightRecorder::find(std::int64_t sequence) {
  if (sequence <= 0) return nullptr;
  const std::int64_t ticket = tickets_[static_cast<std::size_t>(sequence) % tickets_.size()].load(std::memory_order_acquire);
  if (ticket == 0) return nullptr;
  FlightEvent& e = log_->events()[static_cast<std::size_t>(ticket - 1) % log_->events().size()];
  return e.ticket.load(std::memory_order_acquire) == ticket && e.sequence.load(kRelaxed) == sequence ? &e : nullptr;
}

}  // namespace mica
