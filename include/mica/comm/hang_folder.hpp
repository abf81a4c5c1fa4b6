// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "mica/comm/hang_report.hpp"

namespace mica {

/// RUN/hang/LAUNCH, which the ranks of a launch that hangs write: rank-00003.json (HangRecord), hosts.json, report.txt. Each file appears
/// complete or not at all. Without MPI.
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
  void write_report(const std::string& text) const;
  [[nodiscard]] bool has_report() const;
  /// This rank could not save what the ranks that are left hold.
  void write_unsaved(int rank) const;
  [[nodiscard]] int num_unsaved() const;

  /// Ranks that have a record.
  [[nodiscard]] std::set<int> ranks() const;
  /// What is there. A record that cannot be read is left out. @throws ConfigError
  [[nodiscard]] HangScene read() const;

 private:
  std::string path_;
};

}  // namespace mica
