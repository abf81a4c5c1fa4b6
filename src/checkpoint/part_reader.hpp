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

// [Note: reading in parts] If shards are cut along an inner dim, reading a parameter from its first element to its last takes small
// parts of many files in turn: from more blocks than should be in memory. So no block is kept. A block's checksum is updated as its
// bytes are read, from begin to end. A gap that is no longer than the requested bytes after it is read for the checksum. After a
// longer gap only the requested bytes are read, and read again when the checksum gets there. So a file that is read forward is read
// once, in parts of any size, and no byte is read more than twice in any order of requests that asks for it once. Bytes are returned
// before their block is checked: they are verified once the whole block was requested in order, or finish() has returned.

/// Reads a checkpoint's shard files by the offsets of the manifest, without HDF5: loads, conversions, comparisons and
/// verify() read through it. Uses the page cache, whose read-ahead keeps a disk busy (measured: twice as fast as
/// direct reads). One thread. Memory: 256 KiB, and 100 bytes for each block of 4 MiB of which it has read a part.
/// All: @throws DamagedCheckpointError: a file that is missing, unreadable or of the wrong size; a block whose
/// checksum differs from the manifest's, naming file, dataset and byte range.
class PartReader {
 public:
  /// Opens nothing yet. @param max_open  maximum number of open files: 1 is enough to read file after file.
  PartReader(std::string checkpoint_folder, std::size_t max_open);

  /// Bytes [begin, begin + bytes) of a dataset; bytes > 0.
  struct Part {
    std::int64_t begin, bytes;
    std::byte* data;
  };
  /// @param file, dataset  of it; they outlive this. @param parts  ascending, without overlap.
  void read(const FileEntry& file, const DatasetEntry& dataset, std::span<const Part> parts);
  void read(const FileEntry& file, const DatasetEntry& dataset, const Part& part) { read(file, dataset, {&part, 1}); }
  /// Reads the rest of all blocks that were begun, and so checks them.
  void finish();
  /// The same for one block, begun or not.
  void check_block(const FileEntry& file, const DatasetEntry& dataset, std::int64_t block);
  /// Checks everything outside the datasets.
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
