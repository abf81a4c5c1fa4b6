// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <vector>

#include "mica/comm/hang_record.hpp"

namespace mica {

/// All information about a job that hangs or has lost ranks.
struct HangScene {
  std::vector<std::string> hosts;   ///< by rank
  std::vector<HangRecord> records;  ///< in any order; a rank's own record is preferred to one that another rank wrote for it
  bool is_of_one_node = false;      ///< other nodes could not leave records, because there was no run folder
};

/// What the rank that writes the report tells the other ranks.
struct HangSummary {
  std::map<int, RankHealth> lost;  ///< ranks that have died, as any rank has seen it
  int num_alive = 0;               ///< ranks that wrote their own record
};
/// A pure function. A rank that is silent to another node has not died if its own node knows it to be alive or stopped.
[[nodiscard]] HangSummary summary_of(const std::vector<HangRecord>& records);

/// The causes, most likely first, one line each:
///   hosts that are cut off, ranks and hosts that are dead, stopped or silent;
///   ranks that skipped a collective, enqueued it in another order, or passed another number of bytes;
///   ranks that have not entered a collective for which others wait, and are in no collective themselves;
///   hosts that have left no record, though nobody has missed them;
///   if there is none of these: which ranks wait for which.
/// A pure function.
[[nodiscard]] std::vector<std::string> find_causes(const HangScene& scene);

/// The causes, then where each rank is (ranks in the same place share a line): at most a screen. Ends with a newline. A pure function.
[[nodiscard]] std::string hang_report(const HangScene& scene);

}  // namespace mica
