#include "mica/checkpoint/host_comm.hpp"

#include "piece_index.hpp"

namespace mica::checkpoint {

PieceIndex::PieceIndex(const std::string& checkpoint_folder, const Manifest& manifest)
    : PieceIndex(checkpoint_folder, manifest, *make_single_comm()) {}

PieceIndex::PieceIndex(const std::string& checkpoint_folder, const Manifest& manifest, const HostComm& comm) {
  const auto num_ranks = static_cast<std::size_t>(comm.num_ranks());
  const auto rank = static_cast<std::size_t>(comm.rank());
  for (std::size_t first = 0; first < manifest.files.size(); first += num_ranks) {
    const std::vector<std::string> tables = comm.all_or_throw([&] {
      if (first + rank >= manifest.files.size()) return std::string();
      const FileEntry& file = manifest.files[first + rank];
      return pack(manifest, file, read_piece_table(checkpoint_folder, manifest, file));
    });
    for (std::size_t r = 0; r < num_ranks && first + r < manifest.files.size(); ++r)
      add_packed(manifest, first + r, tables[r], checkpoint_folder);
  }
  finish(manifest, checkpoint_folder);
}

}  // namespace mica::checkpoint
