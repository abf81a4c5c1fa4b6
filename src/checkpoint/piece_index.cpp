#include "piece_index.hpp"

#include <algorithm>
#include <cstring>

#include "piece_table.hpp"

namespace mica::checkpoint {
namespace {

/// A row as it travels: numbers that the manifest gives names to.
struct PackedRow {
  std::int64_t dataset, parameter;  // indices into the file's datasets and the unit's parameters
  std::int64_t begin, end, offset;
};

std::string pack_table(const Manifest& manifest, const FileEntry& file, const std::vector<PieceRow>& rows) {
  std::string packed(rows.size() * sizeof(PackedRow), '\0');
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const PieceRow& row = rows[i];
    const auto dataset = std::ranges::find(file.datasets, row.dataset, &DatasetEntry::path);
    const auto& parameters = manifest.units[static_cast<std::size_t>(dataset->unit)].parameters;
    const auto parameter = std::ranges::find(parameters, row.piece.parameter, &fsdp::ParameterSpec::name);
    const PackedRow one{dataset - file.datasets.begin(), parameter - parameters.begin(), row.piece.begin, row.piece.end,
                        row.piece.offset};
    std::memcpy(&packed[i * sizeof(PackedRow)], &one, sizeof(PackedRow));
  }
  return packed;
}

}  // namespace

PieceIndex::PieceIndex(const std::string& checkpoint_folder, const Manifest& manifest)
    : PieceIndex(checkpoint_folder, manifest, *make_single_comm()) {}

PieceIndex::PieceIndex(const std::string& checkpoint_folder, const Manifest& manifest, const HostComm& comm) {
  const auto num_ranks = static_cast<std::size_t>(comm.num_ranks());
  const auto rank = static_cast<std::size_t>(comm.rank());
  for (std::size_t first = 0; first < manifest.files.size(); first += num_ranks) {
    const std::vector<std::string> tables = comm.all_or_throw([&] {
      if (first + rank >= manifest.files.size()) return std::string();
      const FileEntry& file = manifest.files[first + rank];
      return pack_table(manifest, file, read_piece_table(checkpoint_folder, manifest, file));
    });
    for (std::size_t r = 0; r < num_ranks && first + r < manifest.files.size(); ++r)
      add_packed(manifest, first + r, tables[r]);
  }
  finish(checkpoint_folder, manifest);
}

void PieceIndex::add_packed(const Manifest& manifest, std::size_t file_index, std::string_view packed) {
  const FileEntry& file = manifest.files[file_index];
  const std::string* name = nullptr;
  const DatasetEntry* last = nullptr;
  std::vector<Extent>* extents = nullptr;
  for (std::size_t at = 0; at < packed.size(); at += sizeof(PackedRow)) {
    PackedRow row;
    std::memcpy(&row, &packed[at], sizeof(PackedRow));
    const DatasetEntry& dataset = file.datasets.at(static_cast<std::size_t>(row.dataset));
    const std::string& parameter = manifest.units[static_cast<std::size_t>(dataset.unit)]
                                       .parameters.at(static_cast<std::size_t>(row.parameter))
                                       .name;
    if (name != &parameter || last != &dataset) {  // a box is many rows of one parameter
      extents = &extents_[{parameter, dataset.kind}];
      name = &parameter;
      last = &dataset;
    }
    extents->push_back({row.begin, row.end, &file, &dataset, row.offset});
  }
}

void PieceIndex::finish(const std::string& checkpoint_folder, const Manifest& manifest) {
  for (const FileEntry& file : manifest.files) {
    for (const DatasetEntry& dataset : file.datasets) {
      for (const fsdp::ParameterSpec& p : manifest.units[static_cast<std::size_t>(dataset.unit)].parameters) {
        require<DamagedCheckpointError>(has(p.name, dataset.kind),
                                        "{}/{}: {} is there, but no shard file's table of pieces names {} of {}", checkpoint_folder,
                                        file.name, dataset.path, dataset.kind, p.name);
      }
    }
  }
  for (auto& [key, extents] : extents_) std::ranges::sort(extents, {}, &Extent::begin);
  for (const UnitEntry& unit : manifest.units) {
    for (const fsdp::ParameterSpec& p : unit.parameters) {
      require<DamagedCheckpointError>(has(p.name, std::string(kMasterKind)),
                                      "{}: no shard file's table of pieces has parameter {}", checkpoint_folder,
                                      p.name);
      for (auto it = extents_.lower_bound({p.name, ""}); it != extents_.end() && it->first.first == p.name; ++it) {
        std::int64_t at = 0;
        for (const Extent& extent : it->second) {
          require<DamagedCheckpointError>(extent.begin == at,
                                          "{}: the tables of pieces name elements {} to {} of {} ({}) {}",
                                          checkpoint_folder, std::min(at, extent.begin), std::max(at, extent.begin) - 1,
                                          p.name, it->first.second, extent.begin < at ? "twice" : "in no file");
          at = extent.end;
        }
        require<DamagedCheckpointError>(at == p.shape.numel(),
                                        "{}: the tables of pieces name {} of the {} elements of {} ({})",
                                        checkpoint_folder, at, p.shape.numel(), p.name, it->first.second);
      }
    }
  }
}

std::vector<PieceIndex::Extent>::const_iterator PieceIndex::first_after(const std::vector<Extent>& extents,
                                                                        std::int64_t begin) {
  return std::ranges::upper_bound(extents, begin, {}, &Extent::end);
}

}  // namespace mica::checkpoint
