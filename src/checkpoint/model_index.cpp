// SPDX-License-Identifier: Apache-2.0
#include "model_index.hpp"

#include <algorithm>

#include "mica/core/rounding.hpp"
#include "mica/core/version.hpp"
#include "mica/io/raw_file.hpp"

#include "file_rest.hpp"

namespace mica::checkpoint {
namespace {

/// Appends the boxes of [begin, end) inside the subarray at `corner`, whose dims from `dim` on are free.
void append_boxes(const Shape& shape, std::size_t dim, std::vector<std::int64_t>& corner, std::int64_t begin, std::int64_t end,
                  std::vector<io::Hdf5Box>& boxes) {
  std::int64_t inner = 1;
  for (std::size_t d = dim + 1; d < shape.num_dims(); ++d) inner *= shape[d];
  const auto descend = [&](std::int64_t index, std::int64_t from, std::int64_t to) {
    corner[dim] = index;
    append_boxes(shape, dim + 1, corner, from, to, boxes);
    corner[dim] = 0;
  };
  const std::int64_t first_whole = divide_up(begin, inner);
  const std::int64_t last_whole = end / inner;
  if (first_whole > last_whole) {  // inside one index
    descend(end / inner, begin % inner, end % inner);
    return;
  }
  if (begin % inner != 0) descend(begin / inner, begin % inner, inner);
  if (first_whole < last_whole) {
    io::Hdf5Box box{corner, std::vector<std::int64_t>(shape.dims().begin(), shape.dims().end())};
    box.start[dim] = first_whole;
    box.count[dim] = last_whole - first_whole;
    for (std::size_t d = 0; d < dim; ++d) box.count[d] = 1;
    boxes.push_back(std::move(box));
  }
  if (end % inner != 0) descend(end / inner, 0, end % inner);
}

std::vector<io::Hdf5Box> boxes_of(const fsdp::Piece& piece, const Shape& shape) {
  if (piece.dim == fsdp::Piece::kFlat) return boxes_of_range(shape, piece.begin, piece.end);
  io::Hdf5Box box{std::vector<std::int64_t>(shape.num_dims(), 0), std::vector<std::int64_t>(shape.dims().begin(), shape.dims().end())};
  box.start[static_cast<std::size_t>(piece.dim)] = piece.begin;
  box.count[static_cast<std::size_t>(piece.dim)] = piece.end - piece.begin;
  return {std::move(box)};
}

const DatasetEntry* find_dataset(const FileEntry& file, std::size_t unit, const std::string& kind) {
  const auto found = std::ranges::find_if(
      file.datasets, [&](const DatasetEntry& d) { return d.unit == static_cast<std::int64_t>(unit) && d.kind == kind; });
  return found == file.datasets.end() ? nullptr : &*found;
}

/// The kinds that were saved for a unit.
std::vector<std::string> kinds_of(const FileEntry& file, std::size_t unit) {
  std::vector<std::string> kinds;
  for (const DatasetEntry& d : file.datasets) {
    if (d.unit == static_cast<std::int64_t>(unit)) kinds.push_back(d.kind);
  }
  return kinds;
}

void write_unit(io::Hdf5File& index, std::size_t unit, const SavedUnit& saved, const std::vector<FileEntry>& files) {
  const fsdp::ShardLayout& layout = *saved.layout;
  std::vector<std::vector<fsdp::Piece>> pieces;  // by shard rank
  for (int r = 0; r < layout.shard_size(); ++r) pieces.push_back(layout.pieces(r));
  for (const std::string& kind : kinds_of(files[0], unit)) {
    for (std::size_t i = 0; i < layout.parameters().size(); ++i) {
      const fsdp::ParameterSpec& parameter = layout.parameters()[i];
      std::vector<io::Hdf5VirtualSource> sources;
      for (std::size_t r = 0; r < pieces.size(); ++r) {
        const auto piece = std::ranges::find(pieces[r], i, &fsdp::Piece::parameter);
        if (piece == pieces[r].end()) continue;
        const DatasetEntry* dataset = find_dataset(files[r], unit, kind);
        invariant(dataset != nullptr, "all shard files have the same datasets of a unit");
        sources.push_back({files[r].name, dataset->path, dataset->numel(), piece->offset, boxes_of(*piece, parameter.shape)});
      }
      index.create_virtual_dataset((kind == kMasterKind ? "/" : "/optim/" + kind + "/") + parameter.name,
                                   io::file_type(find_dataset(files[0], unit, kind)->dtype),
                                   {parameter.shape.dims().begin(), parameter.shape.dims().end()}, sources);
    }
  }
}

}  // namespace

std::vector<io::Hdf5Box> boxes_of_range(const Shape& shape, std::int64_t begin, std::int64_t end) {
  std::vector<io::Hdf5Box> boxes;
  std::vector<std::int64_t> corner(shape.num_dims(), 0);
  if (begin < end) append_boxes(shape, 0, corner, begin, end, boxes);
  return boxes;
}

FileEntry write_model_index(const std::string& folder, const std::string& run_id, std::int64_t step, const std::vector<SavedUnit>& units,
                            const std::vector<FileEntry>& files) {
  FileEntry entry;
  entry.name = kModelIndexName;
  const std::string path = folder + "/" + entry.name;
  io::writing_hdf5([&] {
    io::Hdf5File index = io::Hdf5File::create(path);
    index.set_attribute("/", "format", "mica checkpoint");
    index.set_attribute("/", "format_version", kFormatVersion);
    index.set_attribute("/", "mica_version", version());
    index.set_attribute("/", "run_id", run_id);
    index.set_attribute("/", "step", step);
    for (std::size_t u = 0; u < units.size(); ++u) write_unit(index, u, units[u], files);
    index.close();
  });
  io::RawFile file = io::RawFile::open_for_writing(path);
  entry.bytes = file.file_bytes();
  entry.rest_crc = rest_crc(file, entry);
  file.sync();
  file.close();
  return entry;
}

}  // namespace mica::checkpoint
