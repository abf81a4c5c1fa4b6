// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "mica/comm/collective.hpp"

namespace mica {

/// State of one collective. `skipped`: its stream had failed earlier, so it never ran.
enum class CollectiveState : std::uint8_t { enqueued, started, done, failed, skipped };

struct FlightEntry {
  using Clock = std::chrono::steady_clock;
  std::int64_t sequence = 0;  ///< counts the group's collectives from 1; 0 = unused
  Collective kind = Collective::barrier;
  std::array<char, 48> label{};  ///< cut to fit: the entry must not own memory that a crash report would touch
  std::int64_t bytes = 0;
  CollectiveState state = CollectiveState::enqueued;
  Clock::time_point enqueued_at, started_at, ended_at;
};

/// The last collectives of one group, for error texts and for a watchdog. Any thread.
class FlightRecorder {
 public:
  static constexpr std::size_t kCapacity = 64;

  /// @returns the collective's sequence number.
  std::int64_t enqueue(Collective kind, const std::string& label, std::int64_t bytes);
  /// Collectives of one group run in order: earlier ones still marked as enqueued were skipped by a failed stream.
  void start(std::int64_t sequence);
  void end(std::int64_t sequence, bool succeeded);

  /// Oldest first.
  [[nodiscard]] std::vector<FlightEntry> entries() const;
  /// "#12 all_gather 'h.3' (4096 bytes) running for 5.2 s; #13 reduce_scatter 'h.3' (4096 bytes) enqueued 5.1 s ago",
  /// or "nothing is pending; last was #11 ...".
  [[nodiscard]] std::string describe_pending() const;

 private:
  FlightEntry* find(std::int64_t sequence);

  mutable std::mutex mutex_;
  std::array<FlightEntry, kCapacity> ring_{};
  std::int64_t last_ = 0;
};

}  // namespace mica
