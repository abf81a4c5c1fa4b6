#include "part_reader.hpp"

#include <algorithm>
#include <cstring>

#include "mica/io/crc32c.hpp"

#include "block_reader.hpp"

namespace mica::checkpoint {
namespace {

/// Of one call: the checksum is computed while they are in the processor's cache.
constexpr std::int64_t kWindowBytes = std::int64_t{256} << 10;
/// Files at once: a process may often have no more than 1,024.
constexpr std::size_t kMaxOpen = 256;

using Parts = std::span<const PartReader::Part>;

/// Where the parts that follow one another without a hole end, but for what is past `most`.
std::int64_t end_of_run(Parts parts, std::int64_t most) {
  std::int64_t end = parts.front().begin;
  for (const PartReader::Part& part : parts) {
    if (part.begin != end || end >= most) break;
    end += part.bytes;
  }
  return std::min(end, most);
}

/// Bytes [begin, end) of the dataset, which are at `from`, to the parts that want them. @returns the parts not yet
/// done.
Parts hand_over(Parts parts, std::int64_t begin, std::int64_t end, const std::byte* from) {
  while (!parts.empty() && parts.front().begin < end) {
    const PartReader::Part& part = parts.front();
    const std::int64_t first = std::max(begin, part.begin);
    const std::int64_t last = std::min(end, part.begin + part.bytes);
    if (first < last) {
      std::memcpy(part.data + (first - part.begin), from + (first - begin), static_cast<std::size_t>(last - first));
    }
    if (part.begin + part.bytes > end) break;
    parts = parts.subspan(1);
  }
  return parts;
}

}  // namespace

PartReader::PartReader(std::string checkpoint_folder)
    : folder_(std::move(checkpoint_folder)), window_(static_cast<std::size_t>(kWindowBytes)) {}

void PartReader::read(const FileEntry& file, const DatasetEntry& dataset, Parts parts) {
  if (parts.empty()) return;
  const std::int64_t last = parts.back().begin + parts.back().bytes;
  invariant(parts.front().begin >= 0 && last <= dataset.bytes, "parts inside the dataset are read");
  std::int64_t at = 0;
  while (!parts.empty()) {
    at = std::max(at, parts.front().begin);
    const std::int64_t block = at / kBlockBytes;
    const std::int64_t block_begin = block * kBlockBytes;
    Begun& begun = begun_.try_emplace({&dataset, block}, Begun{&file}).first->second;
    const std::int64_t begun_end = block_begin + begun.bytes;
    std::int64_t end = end_of_run(parts, block_begin + dataset.block_bytes(block));
    if (at >= begun_end && at - begun_end <= end - at) {
      at = begun_end;
      end = std::min(end, at + kWindowBytes);
      advance(dataset, block, begun, end - at);
    } else {  // a second time, or long before their turn
      end = std::min({end, at < begun_end ? begun_end : end, at + kWindowBytes});
      read_shard_file(open(file), dataset.offset + at, end - at, window_.data());
    }
    parts = hand_over(parts, at, end, window_.data());
    at = end;
  }
}

void PartReader::finish() {
  for (auto& [key, begun] : begun_) {
    const auto [dataset, block] = key;
    while (begun.bytes < dataset->block_bytes(block)) {
      advance(*dataset, block, begun, std::min(kWindowBytes, dataset->block_bytes(block) - begun.bytes));
    }
  }
}

io::RawFile& PartReader::open(const FileEntry& file) {
  const auto found = open_.find(&file);
  if (found != open_.end()) return found->second;
  if (open_.size() == kMaxOpen) open_.clear();
  return open_.emplace(&file, open_shard_file(folder_, file)).first->second;
}

/// The next bytes of a block, into the window.
void PartReader::advance(const DatasetEntry& dataset, std::int64_t block, Begun& begun, std::int64_t bytes) {
  io::RawFile& raw = open(*begun.file);
  read_shard_file(raw, dataset.offset + block * kBlockBytes + begun.bytes, bytes, window_.data());
  begun.crc = io::crc32c(window_.data(), bytes, begun.crc);
  begun.bytes += bytes;
  if (begun.bytes < dataset.block_bytes(block)) return;
  const std::uint32_t found = begun.crc;
  if (found != dataset.block_crcs[static_cast<std::size_t>(block)]) begun = {begun.file};  // never taken for sound
  check_block(raw.path(), dataset, block, found);
}

}  // namespace mica::checkpoint
