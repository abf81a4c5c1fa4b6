#include <algorithm>

#include "piece_table.hpp"

namespace mica::checkpoint {
namespace {

Shape shape_of(const std::int64_t* columns) {
  std::size_t num_dims = 0;
  while (num_dims < Shape::kMaxDims && columns[num_dims] != 0) ++num_dims;
  return Shape(std::span(columns, num_dims));
}

/// What the manifest says of the row's parameter and dataset must allow the row.
void check_row(const std::vector<UnitEntry>& units, const FileEntry& file, const PieceRow& row,
               const std::string& path) {
  const auto dataset = std::ranges::find(file.datasets, row.dataset, &DatasetEntry::path);
  bool is_sound = dataset != file.datasets.end() && dataset->kind == row.kind;
  if (is_sound) {
    const auto& parameters = units[static_cast<std::size_t>(dataset->unit)].parameters;
    const auto parameter = std::ranges::find(parameters, row.piece.parameter, &fsdp::ParameterSpec::name);
    const fsdp::Piece& piece = row.piece;
    is_sound = parameter != parameters.end() && parameter->shape == piece.shape && piece.dim >= fsdp::Piece::kFlat &&
               piece.dim < static_cast<int>(piece.shape.num_dims());
    if (is_sound) {
      const bool is_flat = piece.dim == fsdp::Piece::kFlat;
      const std::int64_t extent = is_flat ? piece.shape.numel() : piece.shape[static_cast<std::size_t>(piece.dim)];
      is_sound = piece.begin >= 0 && piece.end > piece.begin && piece.end <= extent && piece.offset >= 0 &&
                 piece.offset <= dataset->numel() && piece.numel() <= dataset->numel() - piece.offset;
    }
  }
  require<DamagedCheckpointError>(
      is_sound, "{}: the table of pieces does not fit the manifest at {} {} [{}, {}) of dim {} in {}", path,
      row.piece.parameter, row.kind, row.piece.begin, row.piece.end, row.piece.dim, row.dataset);
}

}  // namespace

std::vector<PieceRow> rows_of(const PieceColumns& columns, const std::vector<UnitEntry>& units, const FileEntry& file,
                              const std::string& path) {
  const std::size_t n = columns.parameters.size();
  require<DamagedCheckpointError>(columns.kinds.size() == n && columns.datasets.size() == n &&
                                      columns.shapes.size() == n * Shape::kMaxDims && columns.dims.size() == n &&
                                      columns.begins.size() == n && columns.ends.size() == n &&
                                      columns.offsets.size() == n,
                                  "{}: the columns of the table of pieces have different lengths", path);
  std::vector<PieceRow> rows;
  for (std::size_t i = 0; i < n; ++i) {
    const std::int64_t dim = columns.dims[i];
    const bool is_dim = dim >= fsdp::Piece::kFlat && dim < static_cast<std::int64_t>(Shape::kMaxDims);
    rows.push_back({{columns.parameters[i], shape_of(&columns.shapes[i * Shape::kMaxDims]), columns.begins[i],
                     columns.ends[i], columns.offsets[i],
                     is_dim ? static_cast<int>(dim) : static_cast<int>(static_cast<std::int64_t>(Shape::kMaxDims))},
                    columns.kinds[i],
                    columns.datasets[i]});
    check_row(units, file, rows.back(), path);
  }
  return rows;
}

std::vector<PackedRow> pack(const std::vector<PieceRow>& rows, const std::vector<UnitEntry>& units,
                            const FileEntry& file) {
  std::vector<PackedRow> packed;
  for (const PieceRow& row : rows) {
    const fsdp::Piece& piece = row.piece;
    const auto dataset = std::ranges::find(file.datasets, row.dataset, &DatasetEntry::path);
    const auto& parameters = units[static_cast<std::size_t>(dataset->unit)].parameters;
    const auto parameter = std::ranges::find(parameters, piece.parameter, &fsdp::ParameterSpec::name);
    packed.push_back({dataset - file.datasets.begin(), parameter - parameters.begin(), piece.dim, piece.begin,
                      piece.end, piece.offset});
  }
  return packed;
}

}  // namespace mica::checkpoint
