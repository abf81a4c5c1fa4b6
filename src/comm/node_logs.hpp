// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "mica/comm/flight_log.hpp"
#include "mica/comm/hang_record.hpp"
#include "mica/mpi/communicator.hpp"

namespace mica::detail {

/// The logs of all ranks of a node. Each rank makes a file in /dev/shm, all ranks of the node map it, and then its name is removed: the
/// memory lives as long as one of them does. If /dev/shm has no room, a rank's log is in private memory, which other ranks do not see.
/// The lowest rank of a node also removes what killed jobs have left in /dev/shm.
class NodeLogs {
 public:
  /// @collective
  explicit NodeLogs(const mpi::Communicator& world);

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] const std::shared_ptr<FlightLog>& own() const { return own_; }
  /// World ranks of the node, ascending, this one included.
  [[nodiscard]] const std::vector<int>& ranks() const { return ranks_; }
  [[nodiscard]] int leader() const { return ranks_.front(); }
  /// Null if that rank's log is not visible here.
  [[nodiscard]] const FlightLog* log_of(int rank) const;

  /// Checks another rank's process. A rank in phase `ended` counts as alive.
  [[nodiscard]] RankHealth health_of(int rank, std::int64_t now_ns) const;

 private:
  int rank_;
  std::vector<int> ranks_;
  std::shared_ptr<FlightLog> own_;
  std::map<int, std::unique_ptr<FlightLog>> others_;
  std::map<int, bool> shares_pids_;  ///< whether /proc shows the other rank's process here
};

}  // namespace mica::detail
