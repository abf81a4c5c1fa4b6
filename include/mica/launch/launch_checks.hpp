// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "mica/core/log.hpp"
#include "mica/mpi/communicator.hpp"

namespace mica::launch {

/// What a rank says of itself, and where it runs.
struct RankWords {
  int rank = 0;
  std::string host;
  /// The same for ranks that share a host name and a kernel. Containers with a name of their own count as nodes.
  std::string node;
  std::string words;
};

/// What a check has found: one line that says where, what was seen, what was expected and what to change.
struct Finding {
  enum class Kind : std::uint8_t { warning, error } kind = Kind::warning;
  std::string text;
};

/// One thing that goes wrong at the start of other people's runs. [Note: launch checks]
/// Each rank looks at its own machine, one exchange carries the words of all ranks to all, and every rank judges all of them. So
/// all ranks come to the same findings without another exchange: all throw an error together (exit status 2), and a warning
/// is printed by rank 0. No rank is left waiting: a look that throws is a finding, too.
/// A wrong alarm costs more than a missed one: thresholds lie far from what a healthy machine under load shows, and a check
/// that measures time asks twice.
struct Check {
  std::string name;                                                              ///< "clocks"
  std::function<std::string()> look;                                             ///< local
  std::function<std::vector<Finding>(const std::vector<RankWords>& all)> judge;  ///< pure; `all` in rank order
  /// Findings count only if a second look finds something, too.
  bool asks_twice = false;
};

/// Runs checks and keeps what is to be told until there is a log.
class LaunchChecks {
 public:
  /// @param world  outlives it.
  explicit LaunchChecks(const mpi::Communicator& world) : world_(world) {}

  /// @collective @throws ConfigError on all ranks together: the first error found.
  void run(const std::vector<Check>& checks);
  /// Prints the warnings, and with log.level=debug what the checks took, since the last call. To be called on any rank; rank 0 speaks.
  void tell(const Logger& logger);
  /// Of the ranks of the last run().
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
