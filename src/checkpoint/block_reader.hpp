#pragma once

#include <string>
#include <utility>
#include <vector>

#include "block_workers.hpp"
#include "mica/checkpoint/manifest.hpp"
#include "mica/io/raw_file.hpp"

namespace mica::checkpoint {

/// Reads a shard file by the offsets of the manifest, without HDF5, and gives out only bytes whose block matched its
/// checksum. Through the page cache, whose read-ahead keeps a disk busy (measured: twice as fast as direct reads). All: @throws DamagedCheckpointError naming file, dataset and byte range. One thread.
class BlockReader {
 public:
  /// @param file  outlives it.
  BlockReader(const std::string& checkpoint_folder, const FileEntry& file);

  [[nodiscard]] const FileEntry& file() const { return file_; }
  /// The block's bytes, valid until the next call. @param dataset  of this file.
  [[nodiscard]] const std::byte* block(const DatasetEntry& dataset, std::int64_t block);
  /// The same into memory of the caller's, whose content is undefined when it throws.
  void read_block(const DatasetEntry& dataset, std::int64_t block, std::byte* data);
  /// Everything outside the datasets against its checksum.
  void check_rest();

 private:
  const FileEntry& file_;
  io::RawFile raw_;
  BlockBuffer buffer_;
  const DatasetEntry* held_dataset_ = nullptr;  // what buffer_ holds
  std::int64_t held_block_ = -1;
};

/// All three: @throws DamagedCheckpointError: a file that is missing, unreadable, of another size; a block of another
/// checksum than the manifest's.
[[nodiscard]] io::RawFile open_shard_file(const std::string& checkpoint_folder, const FileEntry& file);
void read_shard_file(io::RawFile& raw, std::int64_t offset, std::int64_t bytes, std::byte* data);
void check_block(const std::string& path, const DatasetEntry& dataset, std::int64_t block, std::uint32_t found);

/// CRC-32C of the parts of a file outside its datasets. @throws IoError.
[[nodiscard]] std::uint32_t rest_crc(io::RawFile& raw, const FileEntry& file);

/// The parts of a file outside the datasets, in file order.
struct FileRange {
  std::int64_t offset;
  std::int64_t bytes;
};
[[nodiscard]] std::vector<FileRange> rest_of(const FileEntry& file);

}  // namespace mica::checkpoint
