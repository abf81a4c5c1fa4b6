// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "mica/core/unique_fd.hpp"

namespace mica::train {

/// A file of records that a run appends to while it trains. A record that cannot be written (full disk) is dropped whole, so that the run
/// goes on; the first of a series of failures is reported.
class AppendedFile {
 public:
  /// @param path  created if missing; empty: nothing is written. @param warn  receives one line. @throws ConfigError if it cannot be
  /// written.
  AppendedFile(const std::string& path, std::function<void(const std::string&)> warn);

  void append(std::string_view record);

 private:
  std::string path_;
  std::function<void(const std::string&)> warn_;
  UniqueFd file_;
  bool is_failing_ = false;
};

}  // namespace mica::train
