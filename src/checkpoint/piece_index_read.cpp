// SPDX-License-Identifier: Apache-2.0
#include "piece_index.hpp"

namespace mica::checkpoint {

PieceIndex::PieceIndex(const std::string& checkpoint_folder, const Manifest& manifest) {
  for (const FileEntry& file : manifest.files) {
    add(manifest, file, read_piece_table(checkpoint_folder, manifest.units, file), checkpoint_folder);
  }
  finish(manifest, checkpoint_folder);
}

}  // namespace mica::checkpoint
