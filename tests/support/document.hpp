// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/paths.hpp"

namespace mica::test {

/// The lines of docs/NAME.
inline std::vector<std::string> document_lines(const std::string& name) {
  std::ifstream file(source_folder() + "/docs/" + name);
  EXPECT_TRUE(file.is_open()) << "docs/" << name << " cannot be read";
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

/// The first column of the table below a heading, without its head and backticks: "| `loss` | nats | ..." is "loss".
inline std::vector<std::string> names_in_table(const std::string& document, const std::string& heading) {
  std::vector<std::string> names;
  bool is_below = false;
  int row = 0;
  for (const std::string& line : document_lines(document)) {
    if (line.starts_with("#")) is_below = line == heading;
    if (!is_below) continue;
    if (!line.starts_with("| ") && !line.starts_with("|-")) {
      if (row > 0) break;
      continue;
    }
    if (++row <= 2) continue;  // the head and the line below it
    const std::size_t begin = line.find('`');
    const std::size_t end = begin == std::string::npos ? begin : line.find('`', begin + 1);
    if (end == std::string::npos) {
      ADD_FAILURE() << "docs/" << document << ", " << heading << ": no name in backticks begins the row " << line;
      continue;
    }
    names.push_back(line.substr(begin + 1, end - begin - 1));
  }
  EXPECT_FALSE(names.empty()) << "docs/" << document << " has no table below " << heading;
  return names;
}

}  // namespace mica::test
