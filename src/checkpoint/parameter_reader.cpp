#include "parameter_reader.hpp"

#include <algorithm>
#include <utility>

namespace mica::checkpoint {

ParameterReader::ParameterReader(std::string checkpoint_folder)
    : folder_(std::move(checkpoint_folder)), manifest_(read_manifest(folder_)), index_(folder_, manifest_) {}

void ParameterReader::read(const std::string& parameter, const std::string& kind, std::int64_t begin, std::int64_t numel,
                           void* data) {
  const std::int64_t element = dtype_bytes(dtype(parameter, kind));
  index_.for_each(parameter, kind, begin, begin + numel, [&](const PieceIndex::Extent& part) {
    reader_of(part).read(*part.dataset, part.offset * element, (part.end - part.begin) * element,
                         static_cast<std::byte*>(data) + (part.begin - begin) * element);
  });
}

BlockReader& ParameterReader::reader_of(const PieceIndex::Extent& part) {
  auto found = std::ranges::find(places_, part.dataset, &Place::dataset);
  if (found == places_.end()) {
    if (places_.size() == kMaxPlaces) places_.pop_back();
    places_.insert(places_.begin(), {part.dataset, std::make_unique<BlockReader>(folder_, *part.file)});
    found = places_.begin();
  }
  std::rotate(places_.begin(), found, found + 1);  // latest first
  return *places_.front().reader;
}

}  // namespace mica::checkpoint
