// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "mica/comm/hang_folder.hpp"
#include "mica/comm/hang_report.hpp"
#include "mica/comm/watchdog.hpp"

#include "node_logs.hpp"
#include "node_ring.hpp"

namespace mica::detail {

/// How watchdogs end their job: records, one report, the emergency save, status 3. All surviving ranks do so at the same time, without MPI.
/// [Note: watchdog]
class JobEnd {
 public:
  using Seconds = NodeRing::Seconds;

  /// @param hosts  by rank   @param ring  null unless this rank is the lowest of its node and there are several nodes
  JobEnd(const NodeLogs& logs, std::vector<std::string> hosts, int num_nodes, NodeRing* ring)
      : logs_(logs), hosts_(std::move(hosts)), num_nodes_(num_nodes), ring_(ring) {}

  void set_place(HangFolder place, std::string log_file);
  [[nodiscard]] std::optional<HangFolder> place() const;
  void set_save(Watchdog::Save save);

  /// @param alarm  the reason, for the report
  [[noreturn]] void end(const std::string& alarm);
  /// Ends the process without a report.
  [[noreturn]] static void end_process();

 private:
  void report_and_save(const std::string& alarm);
  /// limit_for() this job.
  [[nodiscard]] Seconds for_all_ranks(Seconds limit) const;
  /// Ends the process if the file system blocks end(), after printing what is known without it.
  void guard_report(const std::vector<HangRecord>& of_node);
  /// This rank's record, and those of its node's dead and stopped ranks if this rank is to write them. Without a folder, those of all
  /// ranks of the node.
  [[nodiscard]] std::vector<HangRecord> make_records(const std::string& alarm) const;
  /// The ranks that this rank has found dead, stopped or silent.
  [[nodiscard]] std::vector<HangRecord::Sighting> sightings_of(const std::vector<HangRecord>& of_node) const;
  [[nodiscard]] bool is_lowest_alive(const std::vector<HangRecord>& of_node) const;
  /// Writes the records, and the report if this rank is the one to write it.
  void report_in(const HangFolder& place, std::vector<HangRecord>& of_node);
  /// @returns whether all ranks have written theirs
  [[nodiscard]] bool wait_for_records(const HangFolder& place, Seconds limit);
  /// Adds the ranks of nodes that have died: they have written no record and sent no heartbeat.
  void add_silent_nodes(const HangFolder& place, std::vector<HangRecord>& of_node);
  void tell(const HangScene& scene, const std::optional<HangFolder>& place) const;
  /// Saves what this rank holds. Returns once no surviving rank is saving any more. @param num_alive  the ranks that are left
  void save(const std::string& why, Seconds linger, const std::optional<HangFolder>& place, int num_alive);

  const NodeLogs& logs_;
  std::vector<std::string> hosts_;
  int num_nodes_;
  NodeRing* ring_;
  std::atomic<bool> is_reported_ = false;
  mutable std::mutex mutex_;
  std::optional<HangFolder> place_;
  std::string log_file_;
  std::mutex saving_;
  Watchdog::Save save_;
  bool can_save_ = false;  // it has been set
};

/// `limit`, for a job of so many ranks and nodes: each rank has files, and an alarm goes from node to node.
[[nodiscard]] JobEnd::Seconds limit_for(JobEnd::Seconds limit, std::int64_t num_ranks, int num_nodes);

}  // namespace mica::detail
