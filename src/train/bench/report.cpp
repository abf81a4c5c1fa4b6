// SPDX-License-Identifier: Apache-2.0
#include "report.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include <fmt/format.h>

namespace mica::train::bench {
namespace {

std::string cell(const Row& value) { return value.is_string() ? value.get<std::string>() : value.is_null() ? "-" : value.dump(); }

}  // namespace

void Report::add(const Row& row) {
  if (!is_main_) return;
  std::fputs((row.dump() + "\n").c_str(), stdout);
  std::fflush(stdout);
  rows_.push_back(row);
}

void Report::print_table() const {
  if (!is_main_ || rows_.empty()) return;
  std::string text = "\n";
  if (rows_.size() == 1) {
    for (const auto& [key, value] : rows_.front().items()) text += fmt::format("  {:<22} {}\n", key, cell(value));
  } else {
    for (const auto& [key, first] : rows_.front().items()) {
      std::size_t width = key.size();
      for (const Row& row : rows_) width = std::max(width, cell(row.at(key)).size());
      text += fmt::format("  {:>{}}", key, width);
    }
    text += "\n";
    for (const Row& row : rows_) {
      for (const auto& [key, value] : row.items()) {
        std::size_t width = key.size();
        for (const Row& other : rows_) width = std::max(width, cell(other.at(key)).size());
        text += fmt::format("  {:>{}}", cell(value), width);
      }
      text += "\n";
    }
  }
  std::fputs(text.c_str(), stderr);
}

double rounded(double value, int digits) {
  const double factor = std::pow(10.0, digits);
  return std::round(value * factor) / factor;
}

}  // namespace mica::train::bench
