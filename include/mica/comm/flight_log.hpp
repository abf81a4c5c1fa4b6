// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "mica/comm/collective.hpp"

namespace mica {

namespace detail {
inline constexpr auto kRelaxed = std::memory_order_relaxed;
}

/// State of one collective. `skipped`: its stream failed before it, so it never ran.
enum class CollectiveState : std::uint8_t { enqueued, started, done, failed, skipped };

/// Phase of a rank's program, for the watchdogs of other ranks.
enum class RankPhase : std::uint8_t {
  running,
  closing,  ///< its work is done; it waits for the others at the end of the job
  ended     ///< it exits by itself, with or without an error: the watchdogs ignore it
};

// Contents of a FlightLog's memory. Other processes read it while it changes, so all fields are atomics. Times are nanoseconds of the
// steady clock, which is the same for all processes of a node.

/// Text of up to 47 characters, cut to fit.
struct FlightText {
  std::array<std::atomic<std::uint64_t>, 6> words{};
  void set(std::string_view text);
  [[nodiscard]] std::string get() const;
};

struct alignas(64) FlightEvent {
  std::atomic<std::int64_t> ticket{0};  ///< counts the log's events from 1; 0: being written
  std::atomic<std::int64_t> sequence{0}, bytes{0};
  std::atomic<std::int64_t> enqueued_ns{0}, started_ns{0}, ended_ns{0};
  std::atomic<std::int32_t> group{0};
  std::atomic<std::uint8_t> kind{0}, state{0};
  FlightText label;
};

struct alignas(64) FlightGroup {
  enum class Use : std::uint8_t { free, open, closed };  ///< closed: the group was destroyed; its entry is kept until the slot is needed
  std::atomic<std::uint8_t> use{0};
  std::atomic<std::int32_t> instance{0};  ///< counts groups of this name and these members from 0, in the order in which they were made
  std::atomic<std::int32_t> num_members{0};
  std::atomic<std::int32_t> starts_unseen{0};                   ///< not 0: its backend reports ends only (NCCL)
  std::atomic<std::int64_t> enqueued{0}, started{0}, ended{0};  ///< sequence numbers of the last ones
  std::atomic<std::int64_t> changed_ns{0};                      ///< when `started` or `ended` last changed
  FlightText name;
};

struct alignas(64) FlightHead {
  std::atomic<std::int64_t> num_events{0};
  std::atomic<std::int64_t> heartbeat_ns{0};
  std::atomic<std::int64_t> pid{0}, start_ticks{0};  ///< of the process; both 0 before it is known
  std::atomic<std::int32_t> rank{0};
  std::atomic<std::uint8_t> phase{0};
  std::atomic<std::uint8_t> has_alarm{0};  ///< [Note: watchdog]
  FlightText alarm;
};

/// The last events of one rank, its groups, and its heartbeat, in one block of memory. Other processes map and read it, even if the
/// rank is dead or stopped. [Note: flight recorder] in flight_recorder.hpp.
class FlightLog {
 public:
  static constexpr std::size_t kEvents = 1024, kGroups = 128;

  /// @param memory  bytes_for() bytes, zero, aligned to 64; only its owner writes.
  FlightLog(std::shared_ptr<std::byte> memory, std::size_t num_events, std::size_t num_groups, int world_size);
  [[nodiscard]] static std::size_t bytes_for(std::size_t num_events, std::size_t num_groups, int world_size);
  /// In memory that no other process sees.
  [[nodiscard]] static std::shared_ptr<FlightLog> make_private(std::size_t num_events, std::size_t num_groups, int world_size);

  /// The log into which this process's groups record; null: none. One per process, as MPI is, so that groups that a user makes use it,
  /// too.
  [[nodiscard]] static std::shared_ptr<FlightLog> of_process();
  static void set_of_process(std::shared_ptr<FlightLog> log);

  [[nodiscard]] FlightHead& head() const { return *head_; }
  [[nodiscard]] std::span<FlightGroup> groups() const { return {groups_, num_groups_}; }
  [[nodiscard]] std::span<FlightEvent> events() const { return {events_, num_events_}; }
  [[nodiscard]] std::vector<int> members(const FlightGroup& group) const;
  [[nodiscard]] std::int32_t index_of(const FlightGroup& group) const { return static_cast<std::int32_t>(&group - groups_); }

  /// @returns null if no slot is left (the first time, rank 0 prints a warning), or there are more members than ranks in the world.
  /// Thread-safe.
  [[nodiscard]] FlightGroup* add_group(const std::string& name, const std::vector<int>& members);
  /// Its events can be read until the slot is needed.
  void remove_group(FlightGroup& group);

 private:
  std::shared_ptr<std::byte> memory_;
  std::size_t num_events_, num_groups_;
  int world_size_;
  FlightHead* head_;
  FlightGroup* groups_;
  FlightEvent* events_;
  std::atomic<std::int32_t>* members_;  // [groups, world_size]
  std::mutex mutex_;
  std::map<std::string, int> instances_;  // groups made so far, by name and members
  bool has_warned_ = false;
};

}  // namespace mica
