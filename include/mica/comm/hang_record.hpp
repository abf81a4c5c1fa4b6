// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "mica/comm/flight_log.hpp"

namespace mica {

/// State of a rank's process, as far as others know it.
enum class RankHealth : std::uint8_t {
  alive,
  stopped,  ///< by SIGSTOP or a debugger
  dead,     ///< its process is gone
  silent    ///< no heartbeat from it or from its host
};
[[nodiscard]] constexpr bool counts_as_lost(RankHealth health) { return health == RankHealth::dead || health == RankHealth::silent; }

/// The last activity of one rank, written when a job hangs or a rank is lost: by the rank itself, or for it by another rank of its
/// node. [Note: watchdog] Times are in seconds before the record was written.
struct HangRecord {
  struct Group {
    std::string name;
    int instance = 0;     ///< counts the groups of this name and these members
    std::string members;  ///< world ranks, "0-2,5"; text, since thousands of records may name thousands of members each
    std::int64_t enqueued = 0, entered = 0, ended = 0;  ///< sequence numbers of the last ones
    double waits_s = 0;                                 ///< time in the collective that it has entered and not ended
    [[nodiscard]] bool is_waiting() const { return entered > ended; }
    /// MPI calls of Communicators (set-up, saves, agreements). Their bytes may differ between ranks.
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
  /// The state of another rank, as this one saw it.
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
  double sign_of_life_s = 0;  ///< age of its last heartbeat
  std::string alarm;          ///< why the writer suspects a hang
  std::vector<Sighting> sightings;
  std::vector<Group> groups;
  std::vector<Event> events;  ///< oldest first
};

/// Reads the log's memory; the caller fills in host, health and sightings.
[[nodiscard]] HangRecord record_of(const FlightLog& log, std::int64_t now_ns);

[[nodiscard]] std::string to_json(const HangRecord& record);
/// @param path  for error messages  @throws ConfigError
[[nodiscard]] HangRecord parse_hang_record(std::string_view json, const std::string& path);

/// "0-2,5"; "" for none. Ascending input is not required; the order is kept.
[[nodiscard]] std::string to_ranges(const std::vector<int>& ranks);
[[nodiscard]] std::vector<int> from_ranges(std::string_view ranges);

}  // namespace mica
