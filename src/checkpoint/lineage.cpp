#include "mica/checkpoint/lineage.hpp"

#include <algorithm>
#include <optional>

#include "mica/checkpoint/folder.hpp"
#include "mica/io/atomic_file.hpp"

namespace mica::checkpoint {

std::vector<LineEntry> line_of(const std::string& checkpoint_folder, const Manifest& manifest, std::size_t most) {
  const std::string folder = io::parent_directory(checkpoint_folder);
  std::vector<LineEntry> line{{manifest.id(), true}};
  std::optional<CheckpointId> parent = manifest.parent;
  while (parent && line.size() < most) {
    line.push_back({*parent, false});
    try {
      const Manifest found = read_manifest(folder + "/" + step_folder_name(parent->step));
      if (found.id() != *parent) break;
      line.back().is_there = true;
      parent = found.parent;
    } catch (const CheckpointError&) {  // deleted, or damaged, which is no damage of this one
      break;
    }
  }
  std::ranges::reverse(line);
  return line;
}

}  // namespace mica::checkpoint
