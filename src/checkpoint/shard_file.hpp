#pragma once

#include <functional>
#include <string>
#include <vector>

#include "mica/checkpoint/manifest.hpp"
#include "mica/checkpoint/save.hpp"
#include "mica/fsdp/piece.hpp"

namespace mica::checkpoint {

/// One dataset to be written: a rank's whole shard of one unit and kind.
struct ShardSource {
  std::int64_t unit = 0;
  std::string kind;
  ConstTensorView data;  // [P] f32 in host memory
};

/// All that one shard file is made of. It names memory and does not own it: write_shard_file() communicates with nobody
/// and touches no model, so it can run on another thread from a copy of the data.
struct ShardContents {
  std::string run_id;
  std::int64_t step = 0;
  int shard_rank = 0;
  std::vector<UnitEntry> units;                   ///< of the whole model
  std::vector<std::vector<fsdp::Piece>> pieces;   ///< of this rank, by unit
  std::vector<ShardSource> sources;

  [[nodiscard]] std::string file_name() const;
};

/// The units of a root that have parameters, as the manifest lists them.
[[nodiscard]] std::vector<UnitEntry> unit_entries(const fsdp::Root& root);
[[nodiscard]] std::vector<const fsdp::UnitStorage*> unit_storages(const fsdp::Root& root);

[[nodiscard]] ShardContents shard_contents(const SaveState& state);

/// Writes and fsyncs the file. @param at_point  see SaveOptions, may be empty.
/// @throws IoError with path, bytes and free space.
[[nodiscard]] FileEntry write_shard_file(const std::string& folder, const ShardContents& contents,
                                         const std::function<void(std::string_view)>& at_point);

}  // namespace mica::checkpoint
