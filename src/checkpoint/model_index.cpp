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

void write_unit(io::Hdf5File& index, const ShardContents& first, std::int64_t unit) {
  const fsdp::ShardLayout& layout = *first.units[static_cast<std::size_t>(unit)].layout;
  std::vector<std::vector<fsdp::Piece>> pieces;  // by shard rank
  for (int r = 0; r < layout.shard_size(); ++r) pieces.push_back(layout.pieces(r));
  for (const ShardSource& source : first.sources) {
    if (source.unit != unit) continue;
    for (std::size_t i = 0; i < layout.parameters().size(); ++i) {
      const fsdp::ParameterSpec& parameter = layout.parameters()[i];
      std::vector<io::Hdf5VirtualSource> parts;
      for (int r = 0; r < layout.shard_size(); ++r) {
        const std::vector<fsdp::Piece>& of_rank = pieces[static_cast<std::size_t>(r)];
        const auto piece = std::ranges::find(of_rank, i, &fsdp::Piece::parameter);
        if (piece == of_rank.end()) continue;
        parts.push_back({shard_file_name(first.run_id, first.step, r), dataset_path(source), source.numel, piece->offset,
                         boxes_of(*piece, parameter.shape)});
      }
      index.create_virtual_dataset((source.kind == kMasterKind ? "/" : "/optim/" + source.kind + "/") + parameter.name,
                                   io::file_type(source.dtype), {parameter.shape.dims().begin(), parameter.shape.dims().end()}, parts);
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

FileEntry write_model_index(const std::string& folder, const ShardContents& first) {
  FileEntry entry;
  entry.name = kModelIndexName;
  const std::string path = folder + "/" + entry.name;
  io::writing_hdf5([&] {
    io::Hdf5File index = io::Hdf5File::create(path);
    index.set_attribute("/", "format", "mica checkpoint");
    index.set_attribute("/", "format_version", kFormatVersion);
    index.set_attribute("/", "mica_version", version());
    index.set_attribute("/", "run_id", first.run_id);
    index.set_attribute("/", "step", first.step);
    for (std::int64_t u = 0; u < std::ssize(first.units); ++u) write_unit(index, first, u);
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
