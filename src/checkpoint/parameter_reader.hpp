#pragma once

#include <memory>
#include <string>
#include <vector>

#include "mica/checkpoint/manifest.hpp"

#include "block_reader.hpp"
#include "parameter_source.hpp"
#include "piece_index.hpp"

namespace mica::checkpoint {

/// Reads any range of any parameter, or of its optimizer state, out of a checkpoint, through the tables of pieces: on
/// whatever number of ranks it was written. One thread. It keeps the blocks that it read last of up to kMaxPlaces datasets (64
/// MiB): the runs of a parameter that is cut along an inner dim alternate between files.
class ParameterReader final : public ParameterSource {
 public:
  /// @throws DamagedCheckpointError; also if the tables do not name every element of every parameter exactly once.
  explicit ParameterReader(std::string checkpoint_folder);
  ParameterReader(const ParameterReader&) = delete;
  ParameterReader& operator=(const ParameterReader&) = delete;

  [[nodiscard]] const Manifest& manifest() const { return manifest_; }
  [[nodiscard]] bool has(const std::string& parameter, const std::string& kind) const override {
    return index_.has(parameter, kind);
  }
  [[nodiscard]] DType dtype(const std::string& parameter, const std::string& kind) const override {
    return index_.dtype(parameter, kind);
  }
  void read(const std::string& parameter, const std::string& kind, std::int64_t begin, std::int64_t numel,
            void* data) override;

 private:
  static constexpr std::size_t kMaxPlaces = 16;
  [[nodiscard]] BlockReader& reader_of(const PieceIndex::Extent& part);

  std::string folder_;
  Manifest manifest_;
  PieceIndex index_;
  struct Place {
    const DatasetEntry* dataset;
    std::unique_ptr<BlockReader> reader;
  };
  std::vector<Place> places_;  // latest first
};

}  // namespace mica::checkpoint
