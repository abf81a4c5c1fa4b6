// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <iosfwd>
#include <string>
#include <vector>

#include "mica/core/error.hpp"

namespace mica::report {

/// The folder in the arguments of `mica-inspect RUN --follow`. @throws ConfigError for other arguments
[[nodiscard]] std::string followed_folder(const std::vector<std::string>& arguments);

struct FollowOptions {
  bool on_terminal = false;                  ///< redraw one line; else print a line for each measurement
  std::function<std::size_t()> columns{};    ///< the terminal's width, to which the line is cut; 0 or empty: not known
  std::chrono::milliseconds interval{1000};  ///< between looks at the files
  std::chrono::seconds silent_after{60};     ///< without a heartbeat a job on another host is assumed dead after this time
};

/// Shows a run while it trains, from its files alone: step, loss, tokens/s, time left, the rank that the others wait for. Returns when the
/// run has ended, or on SIGINT and SIGTERM. @param folder  of the run
/// @throws ConfigError if it is not a run's folder; Error if its job has died or is silent
ExitCode follow_run(const std::string& folder, std::ostream& out, const FollowOptions& options);

}  // namespace mica::report
