// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace mica::report {

/// A run's metrics.jsonl, read row by row, so that memory does not grow with its length. Rows of steps that were repeated are left out:
/// those before a row `resumed` or `rolled_back` with a later step than its own (a killed job leaves them, until the next launch drops
/// them). Lines that are not rows are left out too.
class MetricsRows {
 public:
  /// Reads the file once, to count. @throws ConfigError if it cannot be read
  explicit MetricsRows(std::string path);

  /// Calls `visit` for each row of the run's history, in order.
  void for_each(const std::function<void(const nlohmann::json& row)>& visit) const;
  /// Number of rows of this event in the file.
  [[nodiscard]] std::int64_t count(const std::string& event) const;

 private:
  struct Reset {
    std::int64_t line = 0, step = 0;  // rows before this line with later steps are no longer part of the run
  };
  std::string path_;
  std::vector<Reset> resets_;  // by line; `step` is the lowest of this and all that follow
  std::vector<std::pair<std::string, std::int64_t>> counts_;
};

/// A field as a number. metrics.jsonl writes NaN and infinity as strings. NaN if the field is missing.
[[nodiscard]] double number_in(const nlohmann::json& row, const char* field);
/// 0 if it is missing or not an integer.
[[nodiscard]] std::int64_t integer_in(const nlohmann::json& row, const char* field);
/// Empty if it is missing or not a string.
[[nodiscard]] std::string text_in(const nlohmann::json& row, const char* field);

}  // namespace mica::report
