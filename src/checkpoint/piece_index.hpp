#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "mica/checkpoint/host_comm.hpp"
#include "mica/checkpoint/manifest.hpp"

namespace mica::checkpoint {

/// Where every element of every parameter, and of its optimizer state, lies in a checkpoint, whatever number of ranks
/// and whatever layout wrote it: the tables of pieces of all shard files, checked to name each element exactly once.
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

  [[nodiscard]] bool has(const std::string& parameter, const std::string& kind) const {
    return extents_.contains({parameter, kind});
  }
  /// Calls visit(part) for the parts of elements [begin, end), in order: extents cut to the range.
  template <class Visit>
  void for_each(const std::string& parameter, const std::string& kind, std::int64_t begin, std::int64_t end,
                Visit visit) const {
    const std::vector<Extent>& all = extents_.at({parameter, kind});
    for (auto it = first_after(all, begin); begin < end; ++it) {
      invariant(it != all.end(), "a range inside the parameter is read");
      const Extent part{begin, it->end < end ? it->end : end, it->file, it->dataset, it->offset + begin - it->begin};
      visit(part);
      begin = part.end;
    }
  }

 private:
  void add_packed(const Manifest& manifest, std::size_t file, std::string_view packed);
  void finish(const std::string& checkpoint_folder, const Manifest& manifest);
  static std::vector<Extent>::const_iterator first_after(const std::vector<Extent>& extents, std::int64_t begin);

  std::map<std::pair<std::string, std::string>, std::vector<Extent>> extents_;  // by parameter and kind, ascending
};

}  // namespace mica::checkpoint
