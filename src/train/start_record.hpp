// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace mica::train {

/// RUN/starts.json: from which step the run was started last, and how often in a row. [Note: starts without progress]
/// A job that is queued again whenever it ends (status 75, a lost node) does so for ever where no start saves a step more than
/// the one before: the time limit is shorter than a start, a step and a save; a node is broken. So the third start in a row
/// from one step ends with status 3, after which scripts do not queue it again. Whoever starts it then by hand has mended the
/// cause: the count begins anew, as it does with every checkpoint, after a resume from an earlier one and with another config.
/// For rank 0 of the job that owns the folder.
class StartRecord {
 public:
  explicit StartRecord(const std::string& run_folder);

  /// Records a start. @param step  that the run has done. @param config  the resolved one, as text
  /// @throws Error if two starts in a row got no further; IoError
  void begin(std::int64_t step, std::string_view config) const;
  /// Takes the last start back, if it can.
  void withdraw() const;

 private:
  std::string run_folder_, path_;
};

}  // namespace mica::train
