// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "mica/checkpoint/manifest.hpp"

#include "piece_table.hpp"
#include "stretches.hpp"

namespace mica::checkpoint {

/// The place in a checkpoint of every element of every parameter and its optimizer state, for any number of ranks and any layout:
/// the tables of pieces of all shard files, checked to list each element exactly once. A piece is one entry, even if it is a box of
/// many runs in the flattened parameter.
class PieceIndex {
 public:
  /// The dataset that holds a run of a parameter; the run's offset is in elements of it.
  struct Place {
    const FileEntry* file;
    const DatasetEntry* dataset;
  };

  /// Reads all tables. @param manifest  outlives it and must not move. @throws DamagedCheckpointError.
  PieceIndex(const std::string& checkpoint_folder, const Manifest& manifest);
  /// From tables that were read already, one per file of the manifest. @param place  for error texts.
  PieceIndex(const Manifest& manifest, const std::vector<std::vector<PackedRow>>& tables, const std::string& place);

  [[nodiscard]] bool has(const std::string& parameter, const std::string& kind) const { return arrays_.contains({parameter, kind}); }
  /// @param parameter, kind  for which has() is true.
  [[nodiscard]] DType dtype(const std::string& parameter, const std::string& kind) const {
    return arrays_.at({parameter, kind}).all.front().place.dataset->dtype;
  }
  /// Calls visit(Run, Place) for the parts of elements [begin, end), in order.
  template <class Visit>
  void for_each(const std::string& parameter, const std::string& kind, std::int64_t begin, std::int64_t end, Visit visit) const {
    arrays_.at({parameter, kind}).for_each(begin, end, visit);
  }

 private:
  void add(const Manifest& manifest, const FileEntry& file, const std::vector<PackedRow>& rows, const std::string& place);
  void finish(const Manifest& manifest, const std::string& place);

  std::map<std::pair<std::string, std::string>, Stretches<Place>> arrays_;  // by parameter and kind
};

}  // namespace mica::checkpoint
