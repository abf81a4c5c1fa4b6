#include "parameter_reader.hpp"

#include <utility>

namespace mica::checkpoint {

ParameterReader::ParameterReader(std::string checkpoint_folder)
    : folder_(std::move(checkpoint_folder)), manifest_(read_manifest(folder_)), index_(folder_, manifest_) {}

void ParameterReader::read(const std::string& parameter, const std::string& kind, std::int64_t begin,
                           std::int64_t numel, float* data) {
  index_.for_each(parameter, kind, begin, begin + numel, [&](const PieceIndex::Extent& part) {
    // One thread that reads forward: the system's read-ahead works while it computes.
    if (!reader_ || &reader_->file() != part.file) reader_.emplace(folder_, *part.file);
    reader_->read(*part.dataset, part.offset * 4, (part.end - part.begin) * 4, data + (part.begin - begin));
  });
}

}  // namespace mica::checkpoint
