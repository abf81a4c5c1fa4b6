// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
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

/// How a watchdog ends its job: records, one report, the emergency save, status 3. All ranks that live do it at the same time, without MPI.
/// [Note: watchdog]
class JobEnd {
 public:
  using Seconds = NodeRing::Seconds;

  /// @param hosts  by rank  @param ring  null: this rank is not its node's lowest, or there is one node
  JobEnd(const NodeLogs& logs, std::vector<std::string> hosts, NodeRing* ring) : logs_(logs), hosts_(std::move(hosts)), ring_(ring) {}

  void set_place(HangFolder place, std::string log_file);
  [[nodiscard]] std::optional<HangFolder> place() const;
  void set_save(Watchdog::Save save);

  /// Does all of it. @param alarm  why
  [[noreturn]] void end(const std::string& alarm);
  /// Only ends the process.
  [[noreturn]] static void end_process();

 private:
  void report_and_save(const std::string& alarm);
  /// For what takes longer with more ranks.
  [[nodiscard]] Seconds for_all_ranks(Seconds limit) const;
  /// Ends the process if the file system does not let end() come to its end, and tells what is known without it.
  void guard_report(const std::vector<HangRecord>& of_node);
  /// This rank's, and those of the ranks of its node that cannot write theirs if this one is to write them. Without a folder, of all.
  [[nodiscard]] std::vector<HangRecord> make_records(const std::string& alarm) const;
  /// Whom this rank has seen dead, stopped or silent.
  [[nodiscard]] std::vector<HangRecord::Sighting> sightings_of(const std::vector<HangRecord>& of_node) const;
  [[nodiscard]] bool is_lowest_alive(const std::vector<HangRecord>& of_node) const;
  /// Writes records, and the report if that is this rank's task.
  void report_in(const HangFolder& place, std::vector<HangRecord>& of_node);
  /// @returns whether all ranks have left one
  [[nodiscard]] bool wait_for_records(const HangFolder& place, Seconds limit);
  /// A node that has died has left no record, and has said nothing meanwhile.
  void add_silent_nodes(const HangFolder& place, std::vector<HangRecord>& of_node);
  void tell(const HangScene& scene, const std::optional<HangFolder>& place) const;
  /// Saves what this rank holds. Comes back once no other rank that lives is saving either.
  void save(int lost, Seconds linger, const std::optional<HangFolder>& place);

  const NodeLogs& logs_;
  std::vector<std::string> hosts_;
  NodeRing* ring_;
  std::atomic<bool> is_reported_ = false;
  int num_alive_ = 0;  // of the ranks
  mutable std::mutex mutex_;
  std::optional<HangFolder> place_;
  std::string log_file_;
  std::mutex saving_;
  Watchdog::Save save_;
};

}  // namespace mica::detail
