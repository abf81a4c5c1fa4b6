// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "mica/checkpoint/manifest.hpp"
#include "mica/io/raw_file.hpp"

namespace mica::checkpoint {

// [Note: reading in parts] Who wants a parameter from its first element to its last takes a little of many files in
// turn when shards are cut along an inner dim: more blocks than memory should hold. So no block is held. A block's
// checksum grows as its bytes are read, from its begin to its end. A gap no longer than what is wanted behind it is
// read for the checksum; behind a longer one only what is wanted is read, and again when the checksum gets there. So a
// file that is read forward is read once, in parts of any size, and no byte more than twice in any order that asks for
// it once. Bytes are given out before their block was checked: they are sound once all of the block was asked for, in
// order, or once finish() has returned.

/// Reads a checkpoint's shard files by the offsets of the manifest, without HDF5: loads, conversions, comparisons and
/// verify() read through it. Through the page cache, whose read-ahead keeps a disk busy (measured: twice as fast as
/// direct reads). One thread. Holds 256 KiB, and 100 bytes for each block of 4 MiB that it has read of.
/// All: @throws DamagedCheckpointError: a file that is missing, unreadable or of another size; a block of another
/// checksum than the manifest's, naming file, dataset and byte range.
class PartReader {
 public:
  /// Opens nothing yet. @param max_open  how many files it may hold open: 1 serves who reads one after another.
  PartReader(std::string checkpoint_folder, std::size_t max_open);

  /// Bytes [begin, begin + bytes) of a dataset. More than none.
  struct Part {
    std::int64_t begin, bytes;
    std::byte* data;
  };
  /// @param file, dataset  of it; they outlive this. @param parts  ascending, without overlap.
  void read(const FileEntry& file, const DatasetEntry& dataset, std::span<const Part> parts);
  void read(const FileEntry& file, const DatasetEntry& dataset, const Part& part) { read(file, dataset, {&part, 1}); }
  /// Reads what is left of the blocks that were begun: all of them match their checksums then.
  void finish();
  /// The same of one block, begun or not.
  void check_block(const FileEntry& file, const DatasetEntry& dataset, std::int64_t block);
  /// Everything outside the datasets against its checksum.
  void check_rest(const FileEntry& file);

 private:
  /// The first bytes of a block that were read, and their checksum.
  struct Begun {
    const FileEntry* file;
    std::int64_t bytes = 0;
    std::uint32_t crc = 0;
  };
  [[nodiscard]] io::RawFile& open(const FileEntry& file);
  void read_at(const FileEntry& file, std::int64_t offset, std::int64_t bytes, std::byte* data);
  Begun& begun_of(const FileEntry& file, const DatasetEntry& dataset, std::int64_t block);
  void complete(const DatasetEntry& dataset, std::int64_t block, Begun& begun);
  void advance(const DatasetEntry& dataset, std::int64_t block, Begun& begun, std::int64_t bytes, std::byte* data);

  std::string folder_;
  std::size_t max_open_;
  std::map<const FileEntry*, io::RawFile> open_;
  std::map<std::pair<const DatasetEntry*, std::int64_t>, Begun> begun_;  // by block
  std::unique_ptr<std::byte[]> window_;
};

}  // namespace mica::checkpoint
