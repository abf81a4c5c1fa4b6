// SPDX-License-Identifier: Apache-2.0
#include "part_reader.hpp"

#include <algorithm>
#include <cstring>

#include "mica/io/crc32c.hpp"

#include "file_rest.hpp"
#include "reading.hpp"
#include "tokenizer_files.hpp"

namespace mica::checkpoint {
namespace {

/// Bytes of one read, small enough that the checksum is computed while they are in the cache.
constexpr std::int64_t kWindowBytes = std::int64_t{256} << 10;

using Part = PartReader::Part;
using Parts = std::span<const Part>;

/// The end of the consecutive parts without a gap, at most `most`.
std::int64_t end_of_run(Parts parts, std::int64_t most) {
  std::int64_t end = parts.front().begin;
  for (const Part& part : parts) {
    if (part.begin != end || end >= most) break;
    end += part.bytes;
  }
  return std::min(end, most);
}

/// Copies bytes [begin, end) of the dataset, which are at `from`, to the parts that contain them. @returns the remaining parts.
Parts hand_over(Parts parts, std::int64_t begin, std::int64_t end, const std::byte* from) {
  while (!parts.empty() && parts.front().begin < end) {
    const Part& part = parts.front();
    const std::int64_t first = std::max(begin, part.begin);
    const std::int64_t last = std::min(end, part.begin + part.bytes);
    std::byte* to = part.data + (first - part.begin);
    const bool is_there = to == from + (first - begin);
    if (first < last && !is_there) std::memcpy(to, from + (first - begin), static_cast<std::size_t>(last - first));
    if (part.begin + part.bytes > end) break;
    parts = parts.subspan(1);
  }
  return parts;
}

}  // namespace

PartReader::PartReader(std::string checkpoint_folder, std::size_t max_open)
    : folder_(std::move(checkpoint_folder)),
      max_open_(max_open),
      window_(std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(kWindowBytes))) {}

void PartReader::read(const FileEntry& file, const DatasetEntry& dataset, Parts parts) {
  if (parts.empty()) return;
  const std::int64_t last = parts.back().begin + parts.back().bytes;
  invariant(parts.front().begin >= 0 && last <= dataset.bytes, "parts inside the dataset are read");
  std::int64_t at = 0;
  while (!parts.empty()) {
    const Part& part = parts.front();
    at = std::max(at, part.begin);
    const std::int64_t block = at / kBlockBytes;
    const std::int64_t block_begin = block * kBlockBytes;
    Begun& begun = begun_of(file, dataset, block);
    const std::int64_t begun_end = block_begin + begun.bytes;
    std::int64_t end = end_of_run(parts, block_begin + dataset.block_bytes(block));
    const bool is_next = at >= begun_end && at - begun_end <= end - at;
    if (is_next) {
      at = begun_end;
    } else if (at < begun_end) {
      end = std::min(end, begun_end);
    }
    end = std::min(end, at + kWindowBytes);
    const bool is_of_one_part = part.begin <= at && end <= part.begin + part.bytes;
    std::byte* to = is_of_one_part ? part.data + (at - part.begin) : window_.get();
    if (is_next) {
      advance(dataset, block, begun, end - at, to);
    } else {  // already read for the checksum, or behind a long gap
      read_at(file, dataset.offset + at, end - at, to);
    }
    parts = hand_over(parts, at, end, to);
    at = end;
  }
}

void PartReader::finish() {
  for (auto& [key, begun] : begun_) complete(*key.first, key.second, begun);
}

void PartReader::check_block(const FileEntry& file, const DatasetEntry& dataset, std::int64_t block) {
  complete(dataset, block, begun_of(file, dataset, block));
}

void PartReader::check_rest(const FileEntry& file) {
  const std::uint32_t found = reading([&] { return rest_crc(open(file), file); });
  if (found == file.rest_crc) return;
  std::string ranges;
  for (const FileRange& range : rest_of(file)) {
    ranges += fmt::format("{}{} to {}", ranges.empty() ? "" : ", ", range.offset, range.offset + range.bytes - 1);
  }
  throw DamagedCheckpointError(fmt::format(
      "{}/{}: {} (file bytes {}) are damaged: checksum {:08x}, expected {:08x}; the parameters may still be sound", folder_, file.name,
      is_tokenizer_file(file.name) ? "the contents" : "HDF5's metadata and the tables", ranges, found, file.rest_crc));
}

io::RawFile& PartReader::open(const FileEntry& file) {
  const auto found = open_.find(&file);
  if (found != open_.end()) return found->second;
  if (open_.size() == max_open_) open_.clear();
  return reading([&]() -> io::RawFile& {
    io::RawFile raw = io::RawFile::open_for_reading(folder_ + "/" + file.name);
    require<DamagedCheckpointError>(raw.file_bytes() == file.bytes,
                                    "{}: the file has {} bytes, expected {}: it is truncated or was replaced", raw.path(), raw.file_bytes(),
                                    file.bytes);
    return open_.emplace(&file, std::move(raw)).first->second;
  });
}

void PartReader::read_at(const FileEntry& file, std::int64_t offset, std::int64_t bytes, std::byte* data) {
  io::RawFile& raw = open(file);
  reading([&] { raw.read_at(offset, data, bytes); });
}

PartReader::Begun& PartReader::begun_of(const FileEntry& file, const DatasetEntry& dataset, std::int64_t block) {
  return begun_.try_emplace({&dataset, block}, Begun{&file}).first->second;
}

void PartReader::complete(const DatasetEntry& dataset, std::int64_t block, Begun& begun) {
  while (begun.bytes < dataset.block_bytes(block)) {
    const std::int64_t left = dataset.block_bytes(block) - begun.bytes;
    advance(dataset, block, begun, std::min(kWindowBytes, left), window_.get());
  }
}

/// Reads the next bytes of a block into its checksum.
void PartReader::advance(const DatasetEntry& dataset, std::int64_t block, Begun& begun, std::int64_t bytes, std::byte* data) {
  const std::int64_t block_begin = block * kBlockBytes;
  read_at(*begun.file, dataset.offset + block_begin + begun.bytes, bytes, data);
  begun.crc = io::crc32c(data, bytes, begun.crc);
  begun.bytes += bytes;
  if (begun.bytes < dataset.block_bytes(block)) return;
  const FileEntry& file = *begun.file;
  const std::uint32_t found = begun.crc;
  const std::uint32_t expected = dataset.block_crcs[static_cast<std::size_t>(block)];
  if (found == expected) return;
  begun = {&file};  // its checksum must never be accepted
  throw DamagedCheckpointError(fmt::format(
      "{}/{}: {} is damaged: bytes {} to {} of the dataset (file offset {}) have checksum {:08x}, expected {:08x}", folder_, file.name,
      dataset.path, block_begin, block_begin + dataset.block_bytes(block) - 1, dataset.offset + block_begin, found, expected));
}

}  // namespace mica::checkpoint
