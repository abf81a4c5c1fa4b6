// SPDX-License-Identifier: Apache-2.0
#include "parameter_reader.hpp"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

namespace mica::checkpoint {
namespace {

/// Well below 1,024, a common limit of open files per process.
constexpr std::size_t kMaxOpenFiles = 256;

}  // namespace

ParameterReader::ParameterReader(std::string checkpoint_folder)
    : manifest_(read_manifest(checkpoint_folder)),
      index_(checkpoint_folder, manifest_),
      parts_(std::move(checkpoint_folder), kMaxOpenFiles) {}

void ParameterReader::read(const std::string& kind, std::span<const Range> ranges) {
  // Group by dataset, so that each dataset's parts of all ranges are read together.
  std::map<std::pair<const FileEntry*, const DatasetEntry*>, std::vector<PartReader::Part>> by_dataset;
  for (const Range& range : ranges) {
    const std::int64_t element = dtype_bytes(dtype(*range.parameter, kind));
    index_.for_each(
        *range.parameter, kind, range.begin, range.begin + range.numel, [&](const fsdp::Run& run, const PieceIndex::Place& place) {
          by_dataset[{place.file, place.dataset}].push_back(
              {run.offset * element, run.numel() * element, static_cast<std::byte*>(range.data) + (run.begin - range.begin) * element});
        });
  }
  for (auto& [place, parts] : by_dataset) {
    std::ranges::sort(parts, {}, &PartReader::Part::begin);
    parts_.read(*place.first, *place.second, parts);
  }
}

}  // namespace mica::checkpoint
