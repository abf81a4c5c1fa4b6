// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "mica/comm/collective.hpp"
#include "mica/comm/flight_log.hpp"

namespace mica {

/// One collective of a group, as a reader sees it.
struct FlightEntry {
  using Clock = std::chrono::steady_clock;
  std::int64_t sequence = 0;  ///< counts the group's collectives from 1
  Collective kind = Collective::barrier;
  std::string label;  ///< cut to fit
  std::int64_t bytes = 0;
  CollectiveState state = CollectiveState::enqueued;
  Clock::time_point enqueued_at, started_at, ended_at;
};

/// The last collectives of one group, for error texts and for the watchdog. [Note: flight recorder]
/// After publish(), a group records into its process's FlightLog, which other processes of the node map: all groups there share one
/// ring of events. Before that, and without such a log, it records into a small log of its own. Only making, publishing and
/// destroying a group takes locks or makes system calls.
/// One thread calls enqueue(); one other start() and end(); any thread reads.
class FlightRecorder {
 public:
  /// Events in a log of its own.
  static constexpr std::size_t kCapacity = 64;

  explicit FlightRecorder(std::string name = {});
  ~FlightRecorder();
  FlightRecorder(const FlightRecorder&) = delete;
  FlightRecorder& operator=(const FlightRecorder&) = delete;

  /// Records into this process's FlightLog from now on, if there is one. Call it before the first enqueue().
  /// @param members  world ranks, by rank of the group
  void publish(const std::vector<int>& members);

  /// World ranks, by rank of the group; empty if not published.
  [[nodiscard]] std::vector<int> members() const { return log_->members(*group_); }

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
  /// Null if it was overwritten.
  FlightEvent* find(std::int64_t sequence);

  std::string name_;
  std::shared_ptr<FlightLog> log_;
  FlightGroup* group_;                                    // in log_
  std::array<std::atomic<std::int64_t>, 256> tickets_{};  // of the collectives in the log, by sequence modulo 256
  std::int64_t last_ = 0;
  std::int64_t last_started_ = 0;
};

}  // namespace mica
