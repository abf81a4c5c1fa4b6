// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "mica/comm/hang_record.hpp"

namespace mica {

/// All that is known of a job that hangs or has lost ranks.
struct HangScene {
  std::vector<std::string> hosts;   ///< by rank
  std::vector<HangRecord> records;  ///< in any order; a rank's own one goes before one that another rank wrote for it
  bool is_of_one_node = false;      ///< other nodes could not leave records: there was no run folder
};

/// What is wrong, the cause first, one line each:
///   ranks and hosts that are dead, stopped or silent, or have left no record;
///   a rank that has skipped a collective, has another order of them, or gives another number of bytes;
///   ranks that have not entered a collective for which others wait, and wait in none themselves;
///   where there is none of these: who waits for whom.
/// Pure.
[[nodiscard]] std::vector<std::string> find_causes(const HangScene& scene);

/// The causes, then where every rank stands, ranks in the same place on one line: at most a screen. Ends with a line feed. Pure.
[[nodiscard]] std::string hang_report(const HangScene& scene);

}  // namespace mica
