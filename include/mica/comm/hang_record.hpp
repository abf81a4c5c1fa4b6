// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "mica/comm/flight_log.hpp"

namespace mica {

/// What is known of a rank's process.
enum class RankHealth : std::uint8_t {
  alive,
  stopped,  ///< by SIGSTOP or a debugger
  dead,     ///< its process is gone
  silent    ///< it, or its host, gives no sign of life
};

/// What one rank did last, written when a job hangs or a rank is lost: by the rank itself, or for it by another one of its node.
/// [Note: watchdog] Times are seconds before it was written.
struct HangRecord {
  struct Group {
    std::string name;
    int instance = 0;                                   ///< of the groups of this name and these members
    std::vector<int> members;                           ///< world ranks
    std::int64_t enqueued = 0, entered = 0, ended = 0;  ///< sequence numbers of the last ones
    double waits_s = 0;                                 ///< in the collective that is entered and not ended
    [[nodiscard]] bool is_waiting() const { return entered > ended; }
    /// Of Communicators: set-up, saves, what ranks agree on. Their bytes may differ between ranks.
    [[nodiscard]] bool is_of_host() const { return name == kHostGroup; }
  };
  struct Event {
    std::size_t group = 0;  ///< in `groups`
    std::int64_t sequence = 0;
    std::string kind;  ///< "all_gather"
    std::string label;
    std::int64_t bytes = 0;
    std::string state;                                  ///< "enqueued", "started", "done", "failed", "skipped"
    double enqueued_s = 0, started_s = 0, ended_s = 0;  ///< ago; 0: not yet
  };
  /// What it knows of another rank.
  struct Sighting {
    int rank = 0;
    RankHealth health = RankHealth::dead;
  };
  static constexpr std::string_view kHostGroup = "host";

  int rank = 0, written_by = 0;
  std::string host;
  std::int64_t pid = 0;
  RankHealth health = RankHealth::alive;
  RankPhase phase = RankPhase::running;
  double sign_of_life_s = 0;  ///< age of its last one
  std::string alarm;          ///< why it, or who writes for it, looks for a hang
  std::vector<Sighting> sightings;
  std::vector<Group> groups;
  std::vector<Event> events;  ///< oldest first
};

/// What the log's memory holds; host, health and sightings are the caller's to fill in.
[[nodiscard]] HangRecord record_of(const FlightLog& log, std::int64_t now_ns);

[[nodiscard]] std::string to_json(const HangRecord& record);
/// @param path  for errors  @throws ConfigError
[[nodiscard]] HangRecord parse_hang_record(std::string_view json, const std::string& path);

/// "0-2,5"; "" for none. Ascending input is not required; the order is kept.
[[nodiscard]] std::string to_ranges(const std::vector<int>& ranks);

}  // namespace mica
