#include "block_reader.hpp"

#include <algorithm>
#include <cstring>

#include "mica/io/crc32c.hpp"

namespace mica::checkpoint {
namespace {

/// Of one call: the checksum is computed while they are in the processor's cache.
constexpr std::int64_t kReadBytes = std::int64_t{256} << 10;

}  // namespace

io::RawFile open_shard_file(const std::string& checkpoint_folder, const FileEntry& file) {
  try {
    io::RawFile raw = io::RawFile::open_for_reading(checkpoint_folder + "/" + file.name);
    require<DamagedCheckpointError>(raw.file_bytes() == file.bytes,
                                    "{}: the file has {} bytes, expected {}: it is truncated or was replaced", raw.path(),
                                    raw.file_bytes(), file.bytes);
    return raw;
  } catch (const IoError& e) {  // missing, unreadable
    throw DamagedCheckpointError(e.what());
  }
}

void read_shard_file(io::RawFile& raw, std::int64_t offset, std::int64_t bytes, std::byte* data) {
  try {
    raw.read_at(offset, data, bytes);
  } catch (const IoError& e) {
    throw DamagedCheckpointError(e.what());
  }
}

void check_block(const std::string& path, const DatasetEntry& dataset, std::int64_t block, std::uint32_t found) {
  const std::int64_t begin = block * kBlockBytes;
  const std::uint32_t expected = dataset.block_crcs[static_cast<std::size_t>(block)];
  require<DamagedCheckpointError>(
      found == expected,
      "{}: {} is damaged: bytes {} to {} of the dataset (file offset {}) have checksum {:08x}, expected {:08x}",
      path, dataset.path, begin, begin + dataset.block_bytes(block) - 1, dataset.offset + begin, found, expected);
}

std::vector<FileRange> rest_of(const FileEntry& file) {
  std::vector<FileRange> ranges;
  std::int64_t at = 0;
  for (const DatasetEntry& dataset : file.datasets) {  // in file order
    if (dataset.offset > at) ranges.push_back({at, dataset.offset - at});
    at = dataset.offset + dataset.bytes;
  }
  if (file.bytes > at) ranges.push_back({at, file.bytes - at});
  return ranges;
}

BlockReader::BlockReader(const std::string& checkpoint_folder, const FileEntry& file)
    : file_(file), raw_(open_shard_file(checkpoint_folder, file)) {}

const std::byte* BlockReader::block(const DatasetEntry& dataset, std::int64_t block) {
  if (held_dataset_ == &dataset && held_block_ == block) return buffer_.data();
  held_dataset_ = nullptr;
  read_block(dataset, block, buffer_.data());
  held_dataset_ = &dataset;
  held_block_ = block;
  return buffer_.data();
}

void BlockReader::read_block(const DatasetEntry& dataset, std::int64_t block, std::byte* data) {
  const std::int64_t begin = block * kBlockBytes;
  const std::int64_t bytes = dataset.block_bytes(block);
  std::uint32_t found = 0;
  for (std::int64_t done = 0; done < bytes; done += kReadBytes) {
    const std::int64_t count = std::min(kReadBytes, bytes - done);
    read_shard_file(raw_, dataset.offset + begin + done, count, data + done);
    found = io::crc32c(data + done, count, found);
  }
  check_block(raw_.path(), dataset, block, found);
}

std::uint32_t rest_crc(io::RawFile& raw, const FileEntry& file) {
  std::uint32_t crc = 0;
  std::vector<std::byte> bytes;
  for (const FileRange& range : rest_of(file)) {
    for (std::int64_t done = 0; done < range.bytes;) {
      const std::int64_t count = std::min(kBlockBytes, range.bytes - done);
      bytes.resize(static_cast<std::size_t>(count));
      raw.read_at(range.offset + done, bytes.data(), count);
      crc = io::crc32c(bytes.data(), count, crc);
      done += count;
    }
  }
  return crc;
}

void BlockReader::check_rest() {
  std::uint32_t found = 0;
  try {
    found = rest_crc(raw_, file_);
  } catch (const IoError& e) {
    throw DamagedCheckpointError(e.what());
  }
  std::string ranges;
  for (const FileRange& range : rest_of(file_)) {
    ranges += fmt::format("{}{} to {}", ranges.empty() ? "" : ", ", range.offset, range.offset + range.bytes - 1);
  }
  require<DamagedCheckpointError>(found == file_.rest_crc,
                                  "{}: HDF5's metadata and the tables (file bytes {}) are damaged: checksum {:08x}, expected "
                                  "{:08x}; the parameters may still be sound",
                                  raw_.path(), ranges, found, file_.rest_crc);
}

}  // namespace mica::checkpoint
