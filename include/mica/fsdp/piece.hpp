// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "mica/tensor/shape.hpp"

namespace mica::fsdp {

/// A flat range of an array that is contiguous in storage.
struct Run {
  std::int64_t begin, end;  ///< elements of the array: of a flattened parameter
  std::int64_t offset;      ///< position of the first one, in elements of the rank's shard of the unit
  [[nodiscard]] std::int64_t numel() const { return end - begin; }

  friend bool operator==(const Run&, const Run&) = default;
};

/// What one rank holds of one parameter, and where it is stored: what fsdp shows to everything above it. A flat range: elements
/// [begin, end) of the row-major flattened parameter; or a box: every element whose index along `dim` is in [begin, end). Its
/// elements are stored in row-major order at [offset, offset + numel()) of the unit's shard.
/// Example: a 5x5 weight over 2 ranks: rank 0 {begin 0, end 13, offset 0}, rank 1 {begin 13, end 25, offset 0}.
struct Piece {
  static constexpr int kFlat = -1;

  std::size_t unit = 0;       ///< in Root::units(); 0 in a layout without a root
  std::size_t parameter = 0;  ///< in UnitStorage::parameters() and ShardLayout::parameters()
  int dim = kFlat;            ///< of a box; kFlat: a flat range
  std::int64_t begin = 0, end = 0;
  std::int64_t offset = 0;  ///< elements into the rank's shard of the unit
  // Of the parameter's shape:
  std::int64_t outer = 1;   ///< indices of the dims before `dim`; of a flat range 1
  std::int64_t inner = 1;   ///< elements per index of `dim`; of a flat range 1
  std::int64_t period = 0;  ///< elements of one outer index

  [[nodiscard]] std::int64_t numel() const { return outer * (end - begin) * inner; }
  [[nodiscard]] bool empty() const { return numel() == 0; }
  /// The piece as flat ranges, in order: one for a flat range, one per index of the outer dims for a box.
  [[nodiscard]] std::int64_t num_runs() const { return outer; }
  [[nodiscard]] Run run(std::int64_t i) const {
    return {i * period + begin * inner, i * period + end * inner, offset + i * (end - begin) * inner};
  }

  friend bool operator==(const Piece&, const Piece&) = default;
};

/// A piece of the parameter'th parameter, of this shape.
[[nodiscard]] Piece make_piece(std::size_t parameter, const Shape& shape, std::int64_t begin, std::int64_t end, std::int64_t offset,
                               int dim = Piece::kFlat);

/// Calls visit(Run) for the piece's elements within [begin, end) of the flattened parameter, in order.
template <class Visit>
void for_each_common(const Piece& piece, std::int64_t begin, std::int64_t end, Visit&& visit) {
  for (std::int64_t i = piece.empty() ? piece.num_runs() : begin / piece.period; i < piece.num_runs(); ++i) {
    const Run run = piece.run(i);
    const std::int64_t first = std::max(begin, run.begin), last = std::min(end, run.end);
    if (first < last) visit(Run{first, last, run.offset + first - run.begin});
    if (run.end >= end) return;
  }
}

/// The reverse: calls visit(Run) for the piece's elements stored at [begin, end) of the shard, in order.
template <class Visit>
void for_each_stored(const Piece& piece, std::int64_t begin, std::int64_t end, Visit&& visit) {
  if (piece.empty()) return;
  for (std::int64_t i = std::max<std::int64_t>(begin - piece.offset, 0) / piece.run(0).numel(); i < piece.num_runs(); ++i) {
    const Run run = piece.run(i);
    if (run.offset >= end) return;
    const std::int64_t skipped = std::max<std::int64_t>(begin - run.offset, 0);
    const Run stored{run.begin + skipped, std::min(run.end, run.begin + (end - run.offset)), run.offset + skipped};
    if (stored.begin < stored.end) visit(stored);
  }
}

}  // namespace mica::fsdp
