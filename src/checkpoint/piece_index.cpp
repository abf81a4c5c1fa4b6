#include "piece_index.hpp"

#include <cstring>

namespace mica::checkpoint {
namespace {

/// Elements of a row-major array in one index along `dim`.
std::int64_t inner_numel(const Shape& shape, std::int64_t dim) {
  std::int64_t inner = 1;
  for (std::size_t d = static_cast<std::size_t>(dim) + 1; d < shape.num_dims(); ++d) inner *= shape[d];
  return inner;
}

}  // namespace

/// A row as it travels: numbers that the manifest gives names to.
struct PieceIndex::PackedRow {
  std::int64_t dataset, parameter;  // indices into the file's datasets and the unit's parameters
  std::int64_t dim, begin, end, offset;
};

PieceIndex::PieceIndex(const Manifest& manifest, const std::vector<std::vector<PieceRow>>& tables,
                       const std::string& place) {
  for (std::size_t f = 0; f < tables.size(); ++f)
    add_packed(manifest, f, pack(manifest, manifest.files[f], tables[f]), place);
  finish(manifest, place);
}

std::string PieceIndex::pack(const Manifest& manifest, const FileEntry& file, const std::vector<PieceRow>& rows) {
  std::string packed(rows.size() * sizeof(PackedRow), '\0');
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const fsdp::Piece& piece = rows[i].piece;
    const auto dataset = std::ranges::find(file.datasets, rows[i].dataset, &DatasetEntry::path);
    const auto& parameters = manifest.units[static_cast<std::size_t>(dataset->unit)].parameters;
    const auto parameter = std::ranges::find(parameters, piece.parameter, &fsdp::ParameterSpec::name);
    const PackedRow one{dataset - file.datasets.begin(),
                        parameter - parameters.begin(),
                        piece.dim,
                        piece.begin,
                        piece.end,
                        piece.offset};
    std::memcpy(&packed[i * sizeof(PackedRow)], &one, sizeof(PackedRow));
  }
  return packed;
}

void PieceIndex::add_packed(const Manifest& manifest, std::size_t file_index, std::string_view packed,
                            const std::string& place) {
  const FileEntry& file = manifest.files[file_index];
  for (std::size_t at = 0; at < packed.size(); at += sizeof(PackedRow)) {
    PackedRow row;
    std::memcpy(&row, &packed[at], sizeof(PackedRow));
    const DatasetEntry& dataset = file.datasets.at(static_cast<std::size_t>(row.dataset));
    const fsdp::ParameterSpec& parameter =
        manifest.units[static_cast<std::size_t>(dataset.unit)].parameters.at(static_cast<std::size_t>(row.parameter));
    const Shape& shape = parameter.shape;
    const bool is_flat = row.dim == fsdp::Piece::kFlat;
    const std::int64_t inner = is_flat ? 1 : inner_numel(shape, row.dim);
    const std::int64_t period = is_flat ? shape.numel() : shape[static_cast<std::size_t>(row.dim)] * inner;
    Array& array = arrays_[{parameter.name, dataset.kind}];
    if (array.stretches.empty()) array.period = period;
    require<DamagedCheckpointError>(
        array.period == period, "{}/{}: the table of pieces cuts {} ({}) along dim {}, other rows along another one",
        place, file.name, parameter.name, dataset.kind, row.dim);
    array.stretches.push_back({row.begin * inner, row.end * inner, &file, &dataset, row.offset});
  }
}

void PieceIndex::finish(const Manifest& manifest, const std::string& place) {
  for (const FileEntry& file : manifest.files) {
    for (const DatasetEntry& dataset : file.datasets) {
      for (const fsdp::ParameterSpec& p : manifest.units[static_cast<std::size_t>(dataset.unit)].parameters) {
        require<DamagedCheckpointError>(has(p.name, dataset.kind),
                                        "{}/{}: {} is there, but no shard file's table of pieces names {} of {}", place,
                                        file.name, dataset.path, dataset.kind, p.name);
      }
    }
  }
  for (auto& [key, array] : arrays_) {
    std::ranges::sort(array.stretches, {}, &Stretch::begin);
    std::int64_t at = 0;
    for (const Stretch& stretch : array.stretches) {
      require<DamagedCheckpointError>(stretch.begin == at,
                                      "{}: the tables of pieces name elements {} to {} of {} ({}) {}", place,
                                      std::min(at, stretch.begin), std::max(at, stretch.begin) - 1, key.first,
                                      key.second, stretch.begin < at ? "twice" : "in no file");
      at = stretch.end;
    }
    require<DamagedCheckpointError>(at == array.period,
                                    "{}: the tables of pieces name {} of the {} elements of {} ({})", place, at,
                                    array.period, key.first, key.second);
  }
  for (const UnitEntry& unit : manifest.units) {
    for (const fsdp::ParameterSpec& p : unit.parameters) {
      require<DamagedCheckpointError>(has(p.name, std::string(kMasterKind)),
                                      "{}: no shard file's table of pieces has parameter {}", place, p.name);
    }
  }
}

}  // namespace mica::checkpoint
