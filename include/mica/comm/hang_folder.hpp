// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "mica/comm/hang_report.hpp"

namespace mica {

/// RUN/hang/LAUNCH. The ranks of a launch that hangs write rank-00003.json (HangRecord); the rank that reports also writes hosts.json,
/// summary.json and report.txt. Files are written atomically. Uses no MPI.
class HangFolder {
 public:
  explicit HangFolder(std::string path) : path_(std::move(path)) {}
  [[nodiscard]] static HangFolder of_launch(const std::string& run_folder, const std::string& launch);
  /// The folder of the last launch that hung. @throws ConfigError if none has
  [[nodiscard]] static HangFolder newest(const std::string& run_folder);

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] bool exists() const;

  /// @throws IoError, ConfigError
  void write(const HangRecord& record) const;
  void write_hosts(const std::vector<std::string>& hosts) const;
  void write_summary(const HangSummary& summary) const;
  /// nullopt if there is none, or it cannot be read.
  [[nodiscard]] std::optional<HangSummary> read_summary() const;
  void write_report(const std::string& text) const;
  [[nodiscard]] bool has_report() const;
  /// Notes that this rank could not save its state after a rank was lost. @param attempt  1 or 2
  void write_unsaved(int rank, int attempt) const;
  [[nodiscard]] int num_unsaved(int attempt) const;

  /// Ranks with a record.
  [[nodiscard]] std::set<int> ranks() const;
  /// The lowest rank that wrote its own record. Reads no more records than needed.
  [[nodiscard]] std::optional<int> lowest_writer() const;
  /// All records and hosts. Files that cannot be read are left out.
  [[nodiscard]] HangScene read() const;

 private:
  std::string path_;
};

}  // namespace mica
