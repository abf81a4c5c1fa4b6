// SPDX-License-Identifier: Apache-2.0
#include "metrics_rows.hpp"

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <limits>
#include <ranges>
#include <utility>

#include "mica/core/error.hpp"

namespace mica::report {
namespace {

/// A discarded value if the line is not a row.
nlohmann::json parse_row(const std::string& line) {
  auto row = nlohmann::json::parse(line, nullptr, false);
  if (!row.is_object() || !row.contains("event") || !row["event"].is_string()) return nlohmann::json(nlohmann::json::value_t::discarded);
  return row;
}

std::int64_t step_of_row(const nlohmann::json& row) { return integer_in(row, row.contains("step") ? "step" : "from"); }

}  // namespace

double number_in(const nlohmann::json& row, const char* field) {
  const auto found = row.find(field);
  if (found == row.end()) return std::numeric_limits<double>::quiet_NaN();
  if (found->is_number()) return found->get<double>();
  if (*found == "inf") return std::numeric_limits<double>::infinity();
  return *found == "-inf" ? -std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
}

std::int64_t integer_in(const nlohmann::json& row, const char* field) {
  const auto found = row.find(field);
  return found != row.end() && found->is_number_integer() ? found->get<std::int64_t>() : 0;
}

std::string text_in(const nlohmann::json& row, const char* field) {
  const auto found = row.find(field);
  return found != row.end() && found->is_string() ? found->get<std::string>() : std::string();
}

MetricsRows::MetricsRows(std::string path) : path_(std::move(path)) {
  errno = 0;
  std::ifstream file(path_);
  require<ConfigError>(file.is_open(), "cannot read {}: {}; expected the folder of a run that was started with log.metrics = true", path_,
                       errno_text(errno));
  std::int64_t number = 0;
  for (std::string line; std::getline(file, line); ++number) {
    const nlohmann::json row = parse_row(line);
    if (row.is_discarded()) continue;
    const std::string event = row["event"];
    const auto known = std::ranges::find(counts_, event, &std::pair<std::string, std::int64_t>::first);
    if (known == counts_.end()) {
      counts_.emplace_back(event, 1);
    } else {
      ++known->second;
    }
    if (event == "resumed" || event == "rolled_back") resets_.push_back({number, step_of_row(row)});
  }
  for (std::size_t i = resets_.size(); i-- > 1;) resets_[i - 1].step = std::min(resets_[i - 1].step, resets_[i].step);
}

void MetricsRows::for_each(const std::function<void(const nlohmann::json& row)>& visit) const {
  std::ifstream file(path_);
  auto next_reset = resets_.begin();
  std::int64_t number = 0;
  for (std::string line; std::getline(file, line); ++number) {
    while (next_reset != resets_.end() && next_reset->line < number) ++next_reset;
    const nlohmann::json row = parse_row(line);
    if (row.is_discarded()) continue;
    if (next_reset != resets_.end() && step_of_row(row) > next_reset->step) continue;
    visit(row);
  }
}

std::int64_t MetricsRows::count(const std::string& event) const {
  const auto known = std::ranges::find(counts_, event, &std::pair<std::string, std::int64_t>::first);
  return known == counts_.end() ? 0 : known->second;
}

}  // namespace mica::report
