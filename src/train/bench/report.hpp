// SPDX-License-Identifier: Apache-2.0
#pragma once

// Private to mica-bench: a benchmark's output.

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace mica::train::bench {

using Row = nlohmann::ordered_json;

/// Rows with the same fields. Each is printed as a JSON line on standard output when it is added, and all of them as a table on standard
/// error.
class Report {
 public:
  explicit Report(bool is_main) : is_main_(is_main) {}
  void add(const Row& row);
  /// A single row is printed one field per line.
  void print_table() const;

 private:
  bool is_main_;
  std::vector<Row> rows_;
};

/// Rounded to this many decimals, for people.
[[nodiscard]] double rounded(double value, int digits = 2);

}  // namespace mica::train::bench
