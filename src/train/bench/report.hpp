// SPDX-License-Identifier: Apache-2.0
#pragma once

// Private to mica-bench: what a benchmark says.

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace mica::train::bench {

using Row = nlohmann::ordered_json;

/// Rows of one shape: each a JSON line on standard output when it is added, all of them a table on standard error.
class Report {
 public:
  explicit Report(bool is_main) : is_main_(is_main) {}
  void add(const Row& row);
  /// One row stands upright, several lie under each other.
  void print_table() const;

 private:
  bool is_main_;
  std::vector<Row> rows_;
};

/// Rounded for people: 4 digits or so.
[[nodiscard]] double rounded(double value, int digits = 2);

}  // namespace mica::train::bench
