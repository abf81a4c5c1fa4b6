#include "piece_table.hpp"

#include <algorithm>

#include "block_reader.hpp"

namespace mica::checkpoint {
namespace {

constexpr std::int64_t kShapeColumns = Shape::kMaxDims;

void write_column(io::Hdf5File& file, const std::string& name, const std::vector<std::int64_t>& values,
                  std::vector<std::int64_t> dims) {
  file.create_dataset(name, DType::i64, dims)
      .write(values.data(), static_cast<std::int64_t>(values.size() * sizeof(std::int64_t)));
}

std::vector<std::int64_t> read_column(const io::Hdf5File& file, const std::string& name, std::int64_t numel) {
  const io::Hdf5Dataset dataset = file.open_dataset(name);
  require<DamagedCheckpointError>(dataset.type() == io::FileType::i64 && dataset.numel() == numel,
                                  "{}: the column {} of the table of pieces has {} elements of type {}, expected {} of int64",
                                  file.path(), name, dataset.numel(), io::file_type_name(dataset.type()), numel);
  std::vector<std::int64_t> values(static_cast<std::size_t>(numel));
  dataset.read(values.data(), dataset.bytes());
  return values;
}

Shape shape_of(const std::int64_t* columns) {
  std::size_t num_dims = 0;
  while (num_dims < Shape::kMaxDims && columns[num_dims] != 0) ++num_dims;
  return Shape(std::span(columns, num_dims));
}

/// What the manifest says of the row's parameter and dataset must allow the row.
void check_row(const Manifest& manifest, const FileEntry& file, const PieceRow& row, const std::string& path) {
  const auto dataset = std::ranges::find(file.datasets, row.dataset, &DatasetEntry::path);
  bool is_sound = dataset != file.datasets.end() && dataset->kind == row.kind;
  if (is_sound) {
    const auto& parameters = manifest.units[static_cast<std::size_t>(dataset->unit)].parameters;
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
  require<DamagedCheckpointError>(is_sound, "{}: the table of pieces does not fit the manifest at {} {} [{}, {}) of dim {} in {}", path,
                                  row.piece.parameter, row.kind, row.piece.begin, row.piece.end, row.piece.dim, row.dataset);
}

}  // namespace

void write_piece_table(io::Hdf5File& file, const std::vector<PieceRow>& rows) {
  std::vector<std::string> parameters, kinds, datasets;
  std::vector<std::int64_t> shapes, cut_dims, begins, ends, offsets;
  for (const PieceRow& row : rows) {
    parameters.push_back(row.piece.parameter);
    kinds.push_back(row.kind);
    datasets.push_back(row.dataset);
    for (std::size_t d = 0; d < Shape::kMaxDims; ++d) {
      shapes.push_back(d < row.piece.shape.num_dims() ? row.piece.shape[d] : 0);
    }
    cut_dims.push_back(row.piece.dim);
    begins.push_back(row.piece.begin);
    ends.push_back(row.piece.end);
    offsets.push_back(row.piece.offset);
  }
  const auto n = static_cast<std::int64_t>(rows.size());
  file.write_strings("/pieces/parameter", parameters);
  file.write_strings("/pieces/kind", kinds);
  write_column(file, "/pieces/shape", shapes, {n, kShapeColumns});
  write_column(file, "/pieces/dim", cut_dims, {n});
  write_column(file, "/pieces/begin", begins, {n});
  write_column(file, "/pieces/end", ends, {n});
  file.write_strings("/pieces/dataset", datasets);
  write_column(file, "/pieces/offset", offsets, {n});
}

std::vector<PieceRow> rows_of(const PieceColumns& columns, const Manifest& manifest, const FileEntry& file,
                              const std::string& path) {
  const std::size_t n = columns.parameters.size();
  require<DamagedCheckpointError>(columns.kinds.size() == n && columns.datasets.size() == n &&
                                      columns.shapes.size() == n * Shape::kMaxDims && columns.dims.size() == n &&
                                      columns.begins.size() == n && columns.ends.size() == n && columns.offsets.size() == n,
                                  "{}: the columns of the table of pieces have different lengths", path);
  std::vector<PieceRow> rows;
  for (std::size_t i = 0; i < n; ++i) {
    const std::int64_t dim = columns.dims[i];
    const bool is_dim = dim >= fsdp::Piece::kFlat && dim < kShapeColumns;
    rows.push_back({{columns.parameters[i], shape_of(&columns.shapes[i * Shape::kMaxDims]), columns.begins[i],
                     columns.ends[i], columns.offsets[i], is_dim ? static_cast<int>(dim) : static_cast<int>(kShapeColumns)},
                    columns.kinds[i], columns.datasets[i]});
    check_row(manifest, file, rows.back(), path);
  }
  return rows;
}

std::vector<PieceRow> read_piece_table(const std::string& checkpoint_folder, const Manifest& manifest, const FileEntry& file) {
  BlockReader(checkpoint_folder, file).check_rest();
  const io::Hdf5File h5 = io::Hdf5File::open(checkpoint_folder + "/" + file.name);
  PieceColumns columns;
  columns.parameters = h5.read_strings("/pieces/parameter");
  columns.kinds = h5.read_strings("/pieces/kind");
  columns.datasets = h5.read_strings("/pieces/dataset");
  const auto n = static_cast<std::int64_t>(columns.parameters.size());
  columns.shapes = read_column(h5, "/pieces/shape", n * kShapeColumns);
  columns.dims = read_column(h5, "/pieces/dim", n);
  columns.begins = read_column(h5, "/pieces/begin", n);
  columns.ends = read_column(h5, "/pieces/end", n);
  columns.offsets = read_column(h5, "/pieces/offset", n);
  return rows_of(columns, manifest, file, h5.path());
}

}  // namespace mica::checkpoint
