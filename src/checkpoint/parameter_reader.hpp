// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>

#include "mica/checkpoint/manifest.hpp"

#include "parameter_source.hpp"
#include "part_reader.hpp"
#include "piece_index.hpp"

namespace mica::checkpoint {

/// Reads any range of any parameter, or of its optimizer state, from a checkpoint of any number of ranks, through the tables of
/// pieces. One thread. Memory: 24 bytes for each run of a shard that one call reads ([Note: reading in parts]).
class ParameterReader final : public ParameterSource {
 public:
  /// @throws DamagedCheckpointError; also if the tables do not list every element of every parameter exactly once.
  explicit ParameterReader(std::string checkpoint_folder);
  ParameterReader(const ParameterReader&) = delete;
  ParameterReader& operator=(const ParameterReader&) = delete;

  [[nodiscard]] const Manifest& manifest() const { return manifest_; }
  [[nodiscard]] bool has(const std::string& parameter, const std::string& kind) const override { return index_.has(parameter, kind); }
  [[nodiscard]] DType dtype(const std::string& parameter, const std::string& kind) const override { return index_.dtype(parameter, kind); }
  void read(const std::string& kind, std::span<const Range> ranges) override;
  using ParameterSource::read;
  void finish() override { parts_.finish(); }

 private:
  Manifest manifest_;
  PieceIndex index_;
  PartReader parts_;
};

}  // namespace mica::checkpoint
