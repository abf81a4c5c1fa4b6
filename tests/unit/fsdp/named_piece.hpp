// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "mica/fsdp/shard_layout.hpp"

namespace mica::fsdp::testing {

/// A piece with its parameter's name and shape, to be written out by hand.
struct NamedPiece {
  std::string parameter;
  Shape shape;
  std::int64_t begin, end, offset;
  int dim = Piece::kFlat;

  friend bool operator==(const NamedPiece&, const NamedPiece&) = default;
};

inline std::vector<NamedPiece> named(const ShardLayout& layout, const std::vector<Piece>& pieces) {
  std::vector<NamedPiece> found;
  for (const Piece& p : pieces) {
    const ParameterSpec& parameter = layout.parameters().at(p.parameter);
    found.push_back({parameter.name, parameter.shape, p.begin, p.end, p.offset, p.dim});
  }
  return found;
}

}  // namespace mica::fsdp::testing
