#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "mica/checkpoint/manifest.hpp"

#include "piece_table.hpp"

namespace mica::checkpoint {

class HostComm;

/// Where every element of every parameter, and of its optimizer state, lies in a checkpoint, whatever number of ranks
/// and whatever layout wrote it: the tables of pieces of all shard files, checked to name each element exactly once.
/// A piece is one entry, here and on the way between ranks, however many runs a box has in the flattened parameter.
class PieceIndex {
 public:
  /// Elements [begin, end) of a flattened parameter lie in a dataset from `offset` (elements) on.
  struct Extent {
    std::int64_t begin, end;
    const FileEntry* file;
    const DatasetEntry* dataset;
    std::int64_t offset;
  };

  /// Reads all tables. @param manifest  outlives it, and stays where it is. @throws DamagedCheckpointError.
  PieceIndex(const std::string& checkpoint_folder, const Manifest& manifest);
  /// The same by ranks together, each reading its part of the tables. @collective
  PieceIndex(const std::string& checkpoint_folder, const Manifest& manifest, const HostComm& comm);
  /// From tables that were read already, one a file of the manifest. @param place  for error texts.
  PieceIndex(const Manifest& manifest, const std::vector<std::vector<PieceRow>>& tables, const std::string& place);

  [[nodiscard]] bool has(const std::string& parameter, const std::string& kind) const {
    return arrays_.contains({parameter, kind});
  }
  /// Of a parameter, or of a kind of its optimizer state, that it has.
  [[nodiscard]] DType dtype(const std::string& parameter, const std::string& kind) const {
    return arrays_.at({parameter, kind}).stretches.front().dataset->dtype;
  }
  /// Calls visit(part) for the parts of elements [begin, end), in order: extents cut to the range.
  template <class Visit>
  void for_each(const std::string& parameter, const std::string& kind, std::int64_t begin, std::int64_t end,
                Visit visit) const {
    const Array& array = arrays_.at({parameter, kind});
    std::int64_t period = begin / array.period;
    auto it = std::ranges::upper_bound(array.stretches, begin % array.period, {}, &Stretch::end);
    while (begin < end) {
      invariant(it != array.stretches.end(), "the stretches cover a period");
      const std::int64_t first = period * array.period;
      const std::int64_t stop = std::min(first + it->end, end);
      visit(Extent{begin, stop, it->file, it->dataset,
                   it->offset + period * (it->end - it->begin) + (begin - first - it->begin)});
      begin = stop;
      if (++it == array.stretches.end()) {
        it = array.stretches.begin();
        ++period;
      }
    }
  }

 private:
  /// Elements [begin, end) of each period: one after another in a dataset, that of period 0 from `offset` on.
  struct Stretch {
    std::int64_t begin, end;
    const FileEntry* file;
    const DatasetEntry* dataset;
    std::int64_t offset;
  };
  /// Boxes along a dim repeat with every index of the outer dims; flat ranges lie in one period of all elements.
  struct Array {
    std::int64_t period = 0;
    std::vector<Stretch> stretches;  // ascending, side by side from 0 to the period
  };
  struct PackedRow;

  [[nodiscard]] static std::string pack(const Manifest& manifest, const FileEntry& file,
                                        const std::vector<PieceRow>& rows);
  void add_packed(const Manifest& manifest, std::size_t file, std::string_view packed, const std::string& place);
  void finish(const Manifest& manifest, const std::string& place);

  std::map<std::pair<std::string, std::string>, Array> arrays_;  // by parameter and kind
};

}  // namespace mica::checkpoint
