// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

namespace mica {

/// A backend's state of one recorded point of a stream.
class EventState {
 public:
  virtual ~EventState() = default;
  [[nodiscard]] virtual bool is_complete() const = 0;
  /// Blocks the host; rethrows the error of the stream that recorded it, if that stream failed before this point.
  virtual void wait_on_host() = 0;
  /// Identifies the stream that recorded it, valid as long as this object. Of two events with one origin, the one with the
  /// higher sequence is later. Used to skip redundant waits. Null: unknown.
  [[nodiscard]] virtual const void* origin() const { return nullptr; }
  [[nodiscard]] virtual std::uint64_t sequence() const { return 0; }
};

/// A point in a stream's order. A cheap, copyable handle; a default-constructed one is complete.
class Event {
 public:
  Event() = default;
  explicit Event(std::shared_ptr<EventState> state) : state_(std::move(state)) {}

  [[nodiscard]] bool is_complete() const { return !state_ || state_->is_complete(); }
  /// Blocks the host until everything before the event has run. @throws the stream's sticky error.
  void wait_on_host() const {
    if (state_) state_->wait_on_host();
  }
  /// The same without throwing. @returns whether the stream failed before this point, so that later tasks did not run.
  [[nodiscard]] bool has_failed() const noexcept {
    try {
      wait_on_host();
      return false;
    } catch (...) {
      return true;
    }
  }
  [[nodiscard]] const std::shared_ptr<EventState>& state() const { return state_; }

 private:
  std::shared_ptr<EventState> state_;
};

}  // namespace mica
