#include "parameter_reader.hpp"

#include <algorithm>

#include "piece_table.hpp"

namespace mica::checkpoint {

ParameterReader::ParameterReader(std::string checkpoint_folder)
    : folder_(std::move(checkpoint_folder)), manifest_(read_manifest(folder_)) {
  for (const FileEntry& file : manifest_.files) {
    for (const PieceRow& row : read_piece_table(folder_, manifest_, file)) {
      const DatasetEntry& dataset = *std::ranges::find(file.datasets, row.dataset, &DatasetEntry::path);  // checked
      extents_[{row.piece.parameter, row.kind}].push_back(
          {row.piece.begin, row.piece.end, &file, &dataset, row.piece.offset});
    }
  }
  for (auto& [key, extents] : extents_) std::ranges::sort(extents, {}, &Extent::begin);
  check_complete();
}

void ParameterReader::check_complete() const {
  for (const UnitEntry& unit : manifest_.units) {
    for (const fsdp::ParameterSpec& p : unit.parameters) {
      require<DamagedCheckpointError>(has(p.name, std::string(kMasterKind)),
                                      "{}: no shard file's table of pieces has parameter {}", folder_, p.name);
      for (auto it = extents_.lower_bound({p.name, ""}); it != extents_.end() && it->first.first == p.name; ++it) {
        std::int64_t at = 0;
        for (const Extent& extent : it->second) {
          require<DamagedCheckpointError>(extent.begin == at,
                                          "{}: the tables of pieces name elements {} to {} of {} ({}) {}", folder_,
                                          std::min(at, extent.begin), std::max(at, extent.begin) - 1, p.name,
                                          it->first.second, extent.begin < at ? "twice" : "in no file");
          at = extent.end;
        }
        require<DamagedCheckpointError>(at == p.shape.numel(),
                                        "{}: the tables of pieces name {} of the {} elements of {} ({})", folder_, at,
                                        p.shape.numel(), p.name, it->first.second);
      }
    }
  }
}

void ParameterReader::read(const std::string& parameter, const std::string& kind, std::int64_t begin, std::int64_t numel,
                           float* data) {
  const std::vector<Extent>& extents = extents_.at({parameter, kind});
  auto extent = std::ranges::upper_bound(extents, begin, {}, &Extent::end);
  for (std::int64_t at = begin; at < begin + numel; ++extent) {
    invariant(extent != extents.end(), "a range inside the parameter is read");
    const std::int64_t count = std::min(extent->end, begin + numel) - at;
    // One thread that reads forward: the system's read-ahead works while it computes.
    if (!reader_ || &reader_->file() != extent->file) reader_.emplace(folder_, *extent->file, io::Caching::page_cache);
    reader_->read(*extent->dataset, (extent->offset + at - extent->begin) * 4, count * 4, data + (at - begin));
    at += count;
  }
}

}  // namespace mica::checkpoint
