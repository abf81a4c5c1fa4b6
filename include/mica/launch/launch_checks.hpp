// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "mica/core/log.hpp"
#include "mica/mpi/communicator.hpp"

namespace mica::launch {

/// A rank's observation, and where the rank runs.
struct RankWords {
  int rank = 0;
  std::string host;
  /// Equal for ranks with the same host name and kernel boot. Containers with different host names count as different nodes.
  std::string node;
  std::string words;
};

/// A check's result, in one line: where, what was found, what was expected and what to change.
struct Finding {
  enum class Kind : std::uint8_t { warning, error } kind = Kind::warning;
  std::string text;
};

/// A check for a known failure at the start of runs. [Note: launch checks]
/// Each rank observes its own machine (`look`), one exchange sends all observations to all ranks, and every rank judges all of them.
/// So all ranks get the same findings without another exchange: an error is thrown on all of them (exit status 2), and rank 0 prints
/// warnings. No rank is left waiting: if `look` throws, that is an error of the check.
/// A false alarm is worse than a missed failure: thresholds are far from what a healthy machine under load shows, and a check that
/// measures time must find the failure twice.
struct Check {
  std::string name;                                                              ///< "clocks"
  std::function<std::string()> look;                                             ///< observes; collective only where that is said
  std::function<std::vector<Finding>(const std::vector<RankWords>& all)> judge;  ///< pure; `all` in rank order
  /// Findings count only if a second look finds something, too.
  bool asks_twice = false;
};

/// Runs checks, and keeps warnings until there is a log.
class LaunchChecks {
 public:
  /// @param world  outlives it.
  explicit LaunchChecks(const mpi::Communicator& world) : world_(world) {}

  /// @collective @throws ConfigError on all ranks together: the first error found.
  void run(const std::vector<Check>& checks);
  /// Logs the warnings and, with log.level=debug, the checks' durations since the last call. Only rank 0 logs.
  void tell(const Logger& logger);
  /// The number of nodes, as of the last run().
  [[nodiscard]] int num_nodes() const { return num_nodes_; }

 private:
  std::vector<std::vector<RankWords>> exchange(const std::vector<Check>& checks);

  const mpi::Communicator& world_;
  int num_nodes_ = 1;
  std::vector<std::string> warnings_, costs_;
};

/// "rank 3 (node2)"
[[nodiscard]] std::string name_of(const RankWords& rank);

}  // namespace mica::launch
