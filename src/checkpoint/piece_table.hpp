// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "mica/checkpoint/manifest.hpp"
#include "mica/fsdp/piece.hpp"
#include "mica/io/hdf5.hpp"

namespace mica::checkpoint {

/// Each row of a shard file's table of pieces says where elements of a parameter (or of its optimizer state) are in this file.
/// [Note: table of pieces] In the file, each column is a dataset under /pieces, all of equal length:
///   parameter  text       full name, "transformer.h.0.mlp.c_fc.weight"
///   kind       text       "master" (the parameter itself), "exp_avg", ...
///   shape      int64 [n,5]  of the whole parameter, padded with zeros
///   dim        int64      -1: elements [begin, end) of the row-major flattened parameter; otherwise every element whose
///                         index along dim is in [begin, end), in row-major order (fsdp::Piece)
///   begin, end int64
///   dataset    text       "/units/3/master"
///   offset     int64      of the first of these elements in that dataset, in elements
/// Elements of a dataset that are in no row are padding. The rows of all shard files together list every element of every parameter
/// exactly once. This struct has the columns as they are in the file, unchecked.
struct PieceColumns {
  std::vector<std::string> parameters, kinds, datasets;
  std::vector<std::int64_t> shapes, dims, begins, ends, offsets;

  void add(const fsdp::Piece& piece, const fsdp::ParameterSpec& parameter, const std::string& kind, const std::string& dataset);
};

/// A checked row, as it is sent between ranks: indices into the manifest instead of names.
struct PackedRow {
  std::int64_t dataset, parameter;  ///< indices into the file's datasets and the unit's parameters
  std::int64_t dim, begin, end, offset;

  /// @param shape  of the parameter.
  [[nodiscard]] fsdp::Piece piece(const Shape& shape) const {
    return fsdp::make_piece(static_cast<std::size_t>(parameter), shape, begin, end, offset, static_cast<int>(dim));
  }
};
/// Checks every row against the manifest's units. @param path  for error texts. @throws DamagedCheckpointError.
[[nodiscard]] std::vector<PackedRow> rows_of(const PieceColumns& columns, const std::vector<UnitEntry>& units, const FileEntry& file,
                                             const std::string& path);

void write_piece_table(io::Hdf5File& file, const PieceColumns& columns);

/// Checks the file's metadata before HDF5 opens it, and every row against the manifest's units.
/// @throws DamagedCheckpointError.
[[nodiscard]] std::vector<PackedRow> read_piece_table(const std::string& checkpoint_folder, const std::vector<UnitEntry>& units,
                                                      const FileEntry& file);

}  // namespace mica::checkpoint
