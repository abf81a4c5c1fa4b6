// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "mica/comm/hang_report.hpp"

namespace mica {

/// What the rank that reports a hang has found out for the others.
struct HangSummary {
  std::map<int, RankHealth> lost;  ///< ranks that have died
  int num_alive = 0;               ///< ranks that wrote a record of their own
};

/// RUN/hang/LAUNCH, which the ranks of a launch that hangs write: rank-00003.json (HangRecord); and the rank that reports: hosts.json,
/// summary.json, report.txt. Each file appears complete or not at all. Without MPI.
class HangFolder {
 public:
  explicit HangFolder(std::string path) : path_(std::move(path)) {}
  [[nodiscard]] static HangFolder of_launch(const std::string& run_folder, const std::string& launch);
  /// Of the launch that hung last. @throws ConfigError if none has
  [[nodiscard]] static HangFolder newest(const std::string& run_folder);

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] bool exists() const;

  /// @throws IoError, ConfigError
  void write(const HangRecord& record) const;
  void write_hosts(const std::vector<std::string>& hosts) const;
  void write_summary(const HangSummary& summary) const;
  /// Nothing: there is none, or none that can be read.
  [[nodiscard]] std::optional<HangSummary> read_summary() const;
  void write_report(const std::string& text) const;
  [[nodiscard]] bool has_report() const;
  /// This rank could not save what the ranks that are left hold.
  void write_unsaved(int rank) const;
  [[nodiscard]] int num_unsaved() const;

  /// Ranks that have a record.
  [[nodiscard]] std::set<int> ranks() const;
  /// The lowest rank that wrote a record of its own. Reads no more records than it takes to find it.
  [[nodiscard]] std::optional<int> lowest_writer() const;
  /// What is there. What cannot be read is left out.
  [[nodiscard]] HangScene read() const;

 private:
  std::string path_;
};

}  // namespace mica
