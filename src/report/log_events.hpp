// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace mica::report {

struct LogEvents {
  std::vector<nlohmann::ordered_json> events;
  std::int64_t num_left_out = 0;  ///< warnings that were left out, repeated ones counted each time
};

/// Warnings and fatal errors of a run's log.txt, each with the step of the progress line before it:
/// {"step":120,"kind":"warning","text":"...","times":1}. The same text is listed once, with its count. No events if there is no log. @param
/// most_warnings  the most texts of warnings to list; errors, at most one per start, are all listed
[[nodiscard]] LogEvents log_events(const std::string& path, std::size_t most_warnings);

}  // namespace mica::report
