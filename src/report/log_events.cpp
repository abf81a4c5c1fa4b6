// SPDX-License-Identifier: Apache-2.0
#include "log_events.hpp"

#include <charconv>
#include <cstdint>
#include <fstream>
#include <map>
#include <string_view>

namespace mica::report {
namespace {

/// The step of a progress line, "step    120/1000  loss ..."; -1 for any other line.
std::int64_t progress_step(std::string_view line) {
  const std::size_t begin = line.starts_with("step ") ? line.find_first_not_of(' ', 5) : std::string_view::npos;
  const std::size_t slash = begin == std::string_view::npos ? begin : line.find('/', begin);
  std::int64_t step = -1;
  if (slash == std::string_view::npos || line.find("  loss ") == std::string_view::npos) return -1;
  const auto [end, error] = std::from_chars(line.data() + begin, line.data() + slash, step);
  return error == std::errc{} && end == line.data() + slash ? step : -1;
}

}  // namespace

LogEvents log_events(const std::string& path, std::size_t most_warnings) {
  static constexpr std::string_view kWarning = "warning: ", kError = "mica: error: ";
  std::ifstream file(path);
  LogEvents found;
  std::map<std::string, std::size_t> known;  // text -> its place in events
  std::size_t num_warnings = 0;
  std::int64_t step = 0;
  for (std::string line; std::getline(file, line);) {
    if (const std::int64_t seen = progress_step(line); seen >= 0) step = seen;
    const bool is_warning = line.starts_with(kWarning);
    if (!is_warning && !line.starts_with(kError)) continue;
    const std::string text = line.substr(is_warning ? kWarning.size() : kError.size());
    if (const auto place = known.find(text); place != known.end()) {
      nlohmann::ordered_json& times = found.events[place->second]["times"];
      times = times.get<std::int64_t>() + 1;
    } else if (is_warning && num_warnings == most_warnings) {
      ++found.num_left_out;
    } else {
      num_warnings += is_warning ? 1 : 0;
      known.emplace(text, found.events.size());
      found.events.push_back({{"step", step}, {"kind", is_warning ? "warning" : "fault"}, {"text", text}, {"times", 1}});
    }
  }
  return found;
}

}  // namespace mica::report
