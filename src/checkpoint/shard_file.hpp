// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "mica/checkpoint/manifest.hpp"
#include "mica/device/pool.hpp"
#include "mica/fsdp/shard_layout.hpp"

#include "block_workers.hpp"

namespace mica::checkpoint {

/// A unit to be saved: its parameters and how they are cut; or a tensor that is whole on every rank.
struct SavedUnit {
  std::string name;
  std::shared_ptr<const fsdp::ShardLayout> layout;
  UnitRole role = UnitRole::unit;
  DType dtype = DType::f32;  ///< of the parameters themselves
};
[[nodiscard]] UnitEntry entry_of(const SavedUnit& unit);

/// One dataset to be written: a rank's whole shard of one unit and kind, padding included.
struct ShardSource {
  std::int64_t unit = 0;
  std::string kind;
  std::int64_t numel = 0;
  DType dtype = DType::f32;
  /// The shard itself, not copied: it must not change until the file is written. If null, `read` is used.
  const std::byte* memory = nullptr;
  /// Writes elements [begin, begin + numel) of the shard to `to`. Called by several threads at once.
  std::function<void(std::int64_t begin, std::int64_t numel, std::byte* to)> read{};
  /// If the host cannot read `memory`: the pool that copies blocks to the host before they are written.
  const Pool* device = nullptr;
};

/// The contents of one shard file. Owns no data. write_shard_file() does not communicate and needs no model, so it can run on another
/// thread, from a copy of the data or from a file.
struct ShardContents {
  std::string run_id;
  std::int64_t step = 0;
  int shard_rank = 0;
  std::vector<SavedUnit> units;  ///< of the whole model
  std::vector<ShardSource> sources;
  /// For the threads that compute checksums and write data.
  WorkerPace pace{};

  /// Bytes of all sources.
  [[nodiscard]] std::int64_t data_bytes() const {
    std::int64_t bytes = 0;
    for (const ShardSource& source : sources) bytes += source.numel * dtype_bytes(source.dtype);
    return bytes;
  }
};

/// "shard-<run_id>-00000500-00002.h5"
[[nodiscard]] std::string shard_file_name(const std::string& run_id, std::int64_t step, int shard_rank);
/// "/units/3/exp_avg"
[[nodiscard]] std::string dataset_path(const ShardSource& source);

/// Writes and fsyncs the file. @param at_point  see SaveOptions, may be empty.
/// @throws IoError with path, bytes and free space.
[[nodiscard]] FileEntry write_shard_file(const std::string& folder, const ShardContents& contents,
                                         const std::function<void(std::string_view)>& at_point);

}  // namespace mica::checkpoint
