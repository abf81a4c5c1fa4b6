#pragma once

#include <string>
#include <vector>

#include "mica/checkpoint/manifest.hpp"

namespace mica::checkpoint {

/// One checkpoint of a line of training.
struct LineEntry {
  CheckpointId id;
  bool is_there = false;  ///< in the folder asked about; false: deleted, set aside or of another run
};

/// Where a checkpoint comes from.
struct Line {
  std::vector<LineEntry> entries;  ///< oldest first, the checkpoint itself last
  bool goes_on = false;            ///< there are earlier ones, which were not looked at
};

/// [Note: lineage] A checkpoint names its parent: the one that its launch saved or resumed before it. A run that goes back to
/// an earlier checkpoint sets the later ones aside (set_aside_after()), so that a folder holds one line, and its newest
/// checkpoint is the one to go on from. The line ends at the first parent that is not in the same folder.
/// @param most  entries: each takes the reading of a manifest.
[[nodiscard]] Line line_of(const std::string& checkpoint_folder, const Manifest& manifest, std::size_t most = 20);

}  // namespace mica::checkpoint
