#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "block_reader.hpp"
#include "mica/checkpoint/manifest.hpp"

namespace mica::checkpoint {

/// Reads any range of any parameter, or of its optimizer state, out of a checkpoint, through the tables of pieces: on
/// whatever number of ranks it was written. One thread; holds one block and one open file at a time.
class ParameterReader {
 public:
  /// @throws DamagedCheckpointError; also if the tables do not name every element of every parameter exactly once.
  explicit ParameterReader(std::string checkpoint_folder);
  ParameterReader(const ParameterReader&) = delete;
  ParameterReader& operator=(const ParameterReader&) = delete;

  [[nodiscard]] const Manifest& manifest() const { return manifest_; }
  /// False for optimizer state that was never allocated (a frozen unit).
  [[nodiscard]] bool has(const std::string& parameter, const std::string& kind) const {
    return extents_.contains({parameter, kind});
  }
  /// Elements [begin, begin + numel) of the row-major flattened parameter. Forward reading is fastest.
  void read(const std::string& parameter, const std::string& kind, std::int64_t begin, std::int64_t numel, float* data);

 private:
  /// Elements [begin, end) of a parameter lie in a dataset from `offset` (elements) on.
  struct Extent {
    std::int64_t begin, end;
    const FileEntry* file;
    const DatasetEntry* dataset;
    std::int64_t offset;
  };
  void check_complete() const;

  std::string folder_;
  Manifest manifest_;
  std::map<std::pair<std::string, std::string>, std::vector<Extent>> extents_;  // by parameter and kind, ascending
  std::optional<BlockReader> reader_;
};

}  // namespace mica::checkpoint
