#include "piece_index.hpp"

namespace mica::checkpoint {

PieceIndex::PieceIndex(const std::string& checkpoint_folder, const Manifest& manifest) {
  for (const FileEntry& file : manifest.files) {
    const std::vector<PieceRow> rows = read_piece_table(checkpoint_folder, manifest.units, file);
    add(manifest, file, pack(rows, manifest.units, file), checkpoint_folder);
  }
  finish(manifest, checkpoint_folder);
}

}  // namespace mica::checkpoint
