// SPDX-License-Identifier: Apache-2.0
#include "piece_index.hpp"

#include <algorithm>

namespace mica::checkpoint {

PieceIndex::PieceIndex(const Manifest& manifest, const std::vector<std::vector<PackedRow>>& tables, const std::string& place) {
  for (std::size_t f = 0; f < tables.size(); ++f) add(manifest, manifest.files[f], tables[f], place);
  finish(manifest, place);
}

void PieceIndex::add(const Manifest& manifest, const FileEntry& file, const std::vector<PackedRow>& rows, const std::string& place) {
  for (const PackedRow& row : rows) {
    const DatasetEntry& dataset = file.datasets.at(static_cast<std::size_t>(row.dataset));
    const fsdp::ParameterSpec& parameter =
        manifest.units[static_cast<std::size_t>(dataset.unit)].parameters.at(static_cast<std::size_t>(row.parameter));
    const bool is_cut_alike = arrays_[{parameter.name, dataset.kind}].add(row.piece(parameter.shape), {&file, &dataset});
    require<DamagedCheckpointError>(is_cut_alike, "{}/{}: the table of pieces cuts {} ({}) along dim {}, other rows along another one",
                                    place, file.name, parameter.name, dataset.kind, row.dim);
  }
}

void PieceIndex::finish(const Manifest& manifest, const std::string& place) {
  for (const FileEntry& file : manifest.files) {
    for (const DatasetEntry& dataset : file.datasets) {
      for (const fsdp::ParameterSpec& p : manifest.units[static_cast<std::size_t>(dataset.unit)].parameters) {
        require<DamagedCheckpointError>(has(p.name, dataset.kind), "{}/{}: {} is there, but no shard file's table of pieces names {} of {}",
                                        place, file.name, dataset.path, dataset.kind, p.name);
      }
    }
  }
  for (auto& [key, array] : arrays_) {
    array.sort();
    std::int64_t at = 0;
    for (const auto& [run, place_of_run] : array.all) {
      require<DamagedCheckpointError>(run.begin == at, "{}: the tables of pieces name elements {} to {} of {} ({}) {}", place,
                                      std::min(at, run.begin), std::max(at, run.begin) - 1, key.first, key.second,
                                      run.begin < at ? "twice" : "in no file");
      at = run.end;
    }
    require<DamagedCheckpointError>(at == array.period, "{}: the tables of pieces name {} of the {} elements of {} ({})", place, at,
                                    array.period, key.first, key.second);
  }
  for (const UnitEntry& unit : manifest.units) {
    for (const fsdp::ParameterSpec& p : unit.parameters) {
      require<DamagedCheckpointError>(has(p.name, std::string(kMasterKind)), "{}: no shard file's table of pieces has parameter {}", place,
                                      p.name);
    }
  }
}

}  // namespace mica::checkpoint
