// SPDX-License-Identifier: Apache-2.0
#include "piece_table.hpp"

#include "part_reader.hpp"

namespace mica::checkpoint {
namespace {

constexpr std::int64_t kShapeColumns = Shape::kMaxDims;

void write_column(io::Hdf5File& file, const std::string& name, const std::vector<std::int64_t>& values,
                  const std::vector<std::int64_t>& dims) {
  file.create_dataset(name, DType::i64, dims).write(values.data(), static_cast<std::int64_t>(values.size() * sizeof(std::int64_t)));
}

std::vector<std::int64_t> read_column(const io::Hdf5File& file, const std::string& name, std::int64_t numel) {
  const io::Hdf5Dataset dataset = file.open_dataset(name);
  require<DamagedCheckpointError>(dataset.type() == io::FileType::i64 && dataset.numel() == numel,
                                  "{}: the column {} of the table of pieces has {} elements of type {}, expected {} of int64", file.path(),
                                  name, dataset.numel(), io::file_type_name(dataset.type()), numel);
  std::vector<std::int64_t> values(static_cast<std::size_t>(numel));
  dataset.read(values.data(), dataset.bytes());
  return values;
}

}  // namespace

void PieceColumns::add(const fsdp::Piece& piece, const fsdp::ParameterSpec& parameter, const std::string& kind,
                       const std::string& dataset) {
  parameters.push_back(parameter.name);
  kinds.push_back(kind);
  datasets.push_back(dataset);
  for (std::size_t d = 0; d < Shape::kMaxDims; ++d) {
    shapes.push_back(d < parameter.shape.num_dims() ? parameter.shape[d] : 0);
  }
  dims.push_back(piece.dim);
  begins.push_back(piece.begin);
  ends.push_back(piece.end);
  offsets.push_back(piece.offset);
}

void write_piece_table(io::Hdf5File& file, const PieceColumns& columns) {
  const auto n = static_cast<std::int64_t>(columns.parameters.size());
  file.write_strings("/pieces/parameter", columns.parameters);
  file.write_strings("/pieces/kind", columns.kinds);
  write_column(file, "/pieces/shape", columns.shapes, {n, kShapeColumns});
  write_column(file, "/pieces/dim", columns.dims, {n});
  write_column(file, "/pieces/begin", columns.begins, {n});
  write_column(file, "/pieces/end", columns.ends, {n});
  file.write_strings("/pieces/dataset", columns.datasets);
  write_column(file, "/pieces/offset", columns.offsets, {n});
}

std::vector<PackedRow> read_piece_table(const std::string& checkpoint_folder, const std::vector<UnitEntry>& units, const FileEntry& file) {
  PartReader(checkpoint_folder, /*max_open=*/1).check_rest(file);
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
  return rows_of(columns, units, file, h5.path());
}

}  // namespace mica::checkpoint
