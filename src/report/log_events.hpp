// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace mica::report {

/// Warnings and fatal errors of a run's log.txt, at most `most`, each with the step of the progress line before it:
/// {"step":120,"kind":"warning","text":"..."}. The same text is told once, with its count. Empty if there is no log.
[[nodiscard]] std::vector<nlohmann::ordered_json> log_events(const std::string& path, std::size_t most);

}  // namespace mica::report
