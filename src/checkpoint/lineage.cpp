// SPDX-License-Identifier: Apache-2.0
#include "mica/checkpoint/lineage.hpp"

#include <algorithm>
#include <optional>

#include "mica/checkpoint/folder.hpp"
#include "mica/io/atomic_file.hpp"

namespace mica::checkpoint {

Line line_of(const std::string& checkpoint_folder, const Manifest& manifest, std::size_t most) {
  const std::vector<CheckpointPath> folder = list_checkpoints(io::parent_directory(checkpoint_folder));
  Line line{.entries = {{manifest.id(), true}}};
  std::optional<CheckpointId> parent = manifest.parent;
  while (parent) {
    if (line.entries.size() == most) {
      line.goes_on = true;
      break;
    }
    line.entries.push_back({*parent, false});
    const auto found = std::ranges::find(folder, parent->step, &CheckpointPath::step);
    if (found == folder.end()) break;
    try {
      const Manifest there = read_manifest_header(found->path);
      if (there.id() != *parent) break;
      line.entries.back().is_there = true;
      parent = there.parent;
    } catch (const Error&) {  // a parent that cannot be read ends the line; this checkpoint is good
      break;
    }
  }
  std::ranges::reverse(line.entries);
  return line;
}

}  // namespace mica::checkpoint
