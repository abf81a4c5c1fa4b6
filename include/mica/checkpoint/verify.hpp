// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "mica/checkpoint/manifest.hpp"

namespace mica::checkpoint {

struct VerifyReport {
  std::int64_t bytes = 0;  ///< checked, without the manifest
  double ms = 0;
  /// One text for each damaged block, file or manifest, with file, dataset and byte range. Empty if nothing is damaged.
  std::vector<std::string> damage;
};

/// Checks every byte of a checkpoint against the manifest's checksums, about as fast as the disk can read. On one rank.
/// @param progress  called from time to time, from one thread at a time, with bytes done and total bytes; may be empty.
[[nodiscard]] VerifyReport verify(const std::string& checkpoint_folder,
                                  const std::function<void(std::int64_t, std::int64_t)>& progress = {});

}  // namespace mica::checkpoint
