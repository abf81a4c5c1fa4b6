#pragma once

#include <cstdint>
#include <string>

#include "mica/tensor/shape.hpp"

namespace mica::fsdp {

/// What one rank holds of one parameter, and where it is stored: the currency between fsdp and everything above it.
/// A flat range: elements [begin, end) of the row-major flattened parameter; or a box: every element whose index along
/// `dim` is in [begin, end). Its elements lie in row-major order at [offset, offset + numel()) of the unit's shard.
/// Example: a 5x5 weight over 2 ranks: rank 0 {begin 0, end 13, offset 0}, rank 1 {begin 13, end 25, offset 0}.
struct Piece {
  static constexpr int kFlat = -1;

  std::string parameter;  ///< full name
  Shape shape;            ///< of the whole parameter
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t offset = 0;  ///< elements into the rank's shard of the unit
  int dim = kFlat;          ///< of a box; kFlat: a flat range

  [[nodiscard]] std::int64_t numel() const { return dim == kFlat ? end - begin : num_runs() * run_numel(); }
  [[nodiscard]] bool empty() const { return numel() == 0; }

  /// A flat range of the parameter that is also contiguous in the shard.
  struct Run {
    std::int64_t begin, end;  ///< elements of the flattened parameter
    std::int64_t offset;      ///< elements into the rank's shard of the unit
    [[nodiscard]] std::int64_t numel() const { return end - begin; }
  };
  /// The piece as flat ranges, in order: one for a flat range, one an index of the outer dims for a box. For a piece of
  /// no elements the one range is empty.
  [[nodiscard]] std::int64_t num_runs() const;
  [[nodiscard]] Run run(std::int64_t i) const;

  friend bool operator==(const Piece&, const Piece&) = default;

 private:
  [[nodiscard]] std::int64_t run_numel() const;
};

}  // namespace mica::fsdp
