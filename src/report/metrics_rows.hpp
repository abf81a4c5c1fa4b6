// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace mica::report {

/// A run's metrics.jsonl, read row by row, so that its length costs no memory.
/// Rows of steps that were done again are left out: those above a row `resumed` or `rolled_back` whose step is later than its own (what a
/// killed job left, before the next launch dropped it). What is no row is, too.
class MetricsRows {
 public:
  /// Looks through the file once. @throws ConfigError if it cannot be read
  explicit MetricsRows(std::string path);

  /// Calls `visit` for each row of the run's history, in order.
  void for_each(const std::function<void(const nlohmann::json& row)>& visit) const;
  /// Rows of this event in the file.
  [[nodiscard]] std::int64_t count(const std::string& event) const;

 private:
  struct Reset {
    std::int64_t line = 0, step = 0;  // rows of lines before it with later steps are no longer part of the run
  };
  std::string path_;
  std::vector<Reset> resets_;  // by line; each with the lowest step of those that follow
  std::vector<std::pair<std::string, std::int64_t>> counts_;
};

/// A field as a number: metrics.jsonl writes NaN and infinity as texts. NaN if it is missing.
[[nodiscard]] double number_in(const nlohmann::json& row, const char* field);
/// 0 if it is missing or no number.
[[nodiscard]] std::int64_t integer_in(const nlohmann::json& row, const char* field);
/// Empty if it is missing or no text.
[[nodiscard]] std::string text_in(const nlohmann::json& row, const char* field);

}  // namespace mica::report
