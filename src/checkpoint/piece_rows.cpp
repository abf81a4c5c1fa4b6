// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "piece_table.hpp"

namespace mica::checkpoint {
namespace {

Shape shape_of(const std::int64_t* columns) {
  std::size_t num_dims = 0;
  while (num_dims < Shape::kMaxDims && columns[num_dims] != 0) ++num_dims;
  return Shape(std::span(columns, num_dims));
}

/// Whether the row fits the parameter's shape and the dataset's size.
bool is_sound(const PackedRow& row, const Shape& shape, std::int64_t dataset_numel) {
  if (row.dim < fsdp::Piece::kFlat || row.dim >= static_cast<std::int64_t>(shape.num_dims())) return false;
  const std::int64_t extent = row.dim == fsdp::Piece::kFlat ? shape.numel() : shape[static_cast<std::size_t>(row.dim)];
  return row.begin >= 0 && row.end > row.begin && row.end <= extent && row.offset >= 0 && row.offset <= dataset_numel &&
         row.piece(shape).numel() <= dataset_numel - row.offset;
}

}  // namespace

std::vector<PackedRow> rows_of(const PieceColumns& columns, const std::vector<UnitEntry>& units, const FileEntry& file,
                               const std::string& path) {
  const std::size_t n = columns.parameters.size();
  require<DamagedCheckpointError>(columns.kinds.size() == n && columns.datasets.size() == n &&
                                      columns.shapes.size() == n * Shape::kMaxDims && columns.dims.size() == n &&
                                      columns.begins.size() == n && columns.ends.size() == n && columns.offsets.size() == n,
                                  "{}: the columns of the table of pieces have different lengths", path);
  std::vector<PackedRow> rows;
  for (std::size_t i = 0; i < n; ++i) {
    PackedRow row{.dataset = 0,
                  .parameter = 0,
                  .dim = columns.dims[i],
                  .begin = columns.begins[i],
                  .end = columns.ends[i],
                  .offset = columns.offsets[i]};
    const auto dataset = std::ranges::find(file.datasets, columns.datasets[i], &DatasetEntry::path);
    bool fits = dataset != file.datasets.end() && dataset->kind == columns.kinds[i];
    if (fits) {
      const auto& parameters = units[static_cast<std::size_t>(dataset->unit)].parameters;
      const auto parameter = std::ranges::find(parameters, columns.parameters[i], &fsdp::ParameterSpec::name);
      row.dataset = dataset - file.datasets.begin();
      row.parameter = parameter - parameters.begin();
      fits = parameter != parameters.end() && parameter->shape == shape_of(&columns.shapes[i * Shape::kMaxDims]) &&
             is_sound(row, parameter->shape, dataset->numel());
    }
    require<DamagedCheckpointError>(fits, "{}: the table of pieces does not fit the manifest at {} {} [{}, {}) of dim {} in {}", path,
                                    columns.parameters[i], columns.kinds[i], row.begin, row.end, row.dim, columns.datasets[i]);
    rows.push_back(row);
  }
  return rows;
}

}  // namespace mica::checkpoint
