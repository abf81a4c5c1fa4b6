// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "mica/checkpoint/manifest.hpp"

namespace mica::checkpoint {

/// One checkpoint in a run's history.
struct LineEntry {
  CheckpointId id;
  bool is_there = false;  ///< in the same folder; false: deleted, set aside or of another run
};

/// A checkpoint and its ancestors.
struct Line {
  std::vector<LineEntry> entries;  ///< oldest first, the checkpoint itself last
  bool goes_on = false;            ///< there are earlier ones that were not read
};

/// [Note: lineage] A checkpoint names its parent: the one that its launch saved or resumed before it. A run that goes back to
/// an earlier checkpoint sets the later ones aside (set_aside_after()), so that a folder holds a single line of checkpoints, and the
/// newest is the one to resume from. The line ends at the first parent that is not in the same folder.
/// @param most  maximum number of entries: a manifest is read for each.
[[nodiscard]] Line line_of(const std::string& checkpoint_folder, const Manifest& manifest, std::size_t most = 20);

}  // namespace mica::checkpoint
