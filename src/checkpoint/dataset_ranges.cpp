#include "dataset_ranges.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <tuple>

#include "block_reader.hpp"
#include "block_workers.hpp"

namespace mica::checkpoint {
namespace {

/// One block and the ranges [first, last) that want some of it.
struct Job {
  std::int64_t block;
  std::size_t first, last;
};

std::vector<Job> jobs_of(const std::vector<DatasetRange>& ranges) {
  std::vector<Job> jobs;
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    const DatasetRange& range = ranges[i];
    const bool follows = i > 0 && ranges[i - 1].dataset == range.dataset;
    for (std::int64_t b = range.begin / kBlockBytes; b * kBlockBytes < range.begin + range.bytes; ++b) {
      if (follows && jobs.back().block >= b) {
        jobs.back().last = i + 1;  // sorted: only the last block can be shared with the range before
      } else {
        jobs.push_back({b, i, i + 1});
      }
    }
  }
  return jobs;
}

/// Copies what `range` wants of the block.
void copy_part(const DatasetRange& range, std::int64_t block, std::int64_t block_bytes, const std::byte* bytes) {
  const std::int64_t begin = std::max(range.begin, block * kBlockBytes);
  const std::int64_t end = std::min(range.begin + range.bytes, block * kBlockBytes + block_bytes);
  std::memcpy(range.data + (begin - range.begin), bytes + (begin - block * kBlockBytes),
              static_cast<std::size_t>(end - begin));
}

}  // namespace

std::int64_t read_ranges(const std::string& checkpoint_folder, std::vector<DatasetRange> ranges) {
  std::erase_if(ranges, [](const DatasetRange& range) { return range.bytes == 0; });
  std::ranges::sort(ranges, {},
                    [](const DatasetRange& r) { return std::tuple(r.file->shard_rank, r.dataset->offset, r.begin); });
  const std::vector<Job> jobs = jobs_of(ranges);
  std::int64_t bytes = 0;
  for (const Job& job : jobs) bytes += ranges[job.first].dataset->block_bytes(job.block);
  std::array<std::optional<BlockReader>, kNumBlockWorkers> readers;  // of the file that the worker is at
  run_block_workers(static_cast<std::int64_t>(jobs.size()), bytes, [&](int worker, std::int64_t j) {
    const Job& job = jobs[static_cast<std::size_t>(j)];
    const DatasetRange& first = ranges[job.first];
    std::optional<BlockReader>& reader = readers[static_cast<std::size_t>(worker)];
    if (!reader || &reader->file() != first.file) reader.emplace(checkpoint_folder, *first.file);
    const std::int64_t begin = job.block * kBlockBytes;
    if (first.begin <= begin && begin + first.dataset->block_bytes(job.block) <= first.begin + first.bytes) {
      reader->read_block(*first.dataset, job.block, first.data + (begin - first.begin));
      return;
    }
    const std::byte* block = reader->block(*first.dataset, job.block);
    for (std::size_t i = job.first; i < job.last; ++i) {
      copy_part(ranges[i], job.block, first.dataset->block_bytes(job.block), block);
    }
  });
  return bytes;
}

}  // namespace mica::checkpoint
