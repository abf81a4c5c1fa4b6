// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <iosfwd>
#include <string>
#include <vector>

#include "mica/core/error.hpp"

namespace mica::report {

/// The folder that `mica-inspect RUN --follow` names. @throws ConfigError unless it is that
[[nodiscard]] std::string followed_folder(const std::vector<std::string>& arguments);

struct FollowOptions {
  bool on_terminal = false;                  ///< one line is drawn again and again; else a line a step
  std::chrono::milliseconds interval{1000};  ///< between looks at the files
  std::chrono::seconds silent_after{60};     ///< without a heartbeat: the job is taken to be dead
};

/// Shows a run while it trains, from its files alone: step, loss, tokens/s, time left, which rank the others wait for. Returns when the run
/// has ended, its job is silent, or on SIGINT and SIGTERM. @param folder  of the run
/// @throws ConfigError if it is no run's folder
ExitCode follow_run(const std::string& folder, std::ostream& out, const FollowOptions& options);

}  // namespace mica::report
