// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "mica/fsdp/unit.hpp"

namespace mica::fsdp {

/// All ranks' shards of one unit, from which summon and state dicts read whole parameters. Gathers on the compute stream, after
/// the work there that wrote the shards, and does not touch the unit's own unsharded storage.
class GatheredUnit {
 public:
  /// @param shard  this rank's, [P]: the master or the sharded gradient.  @collective over the shard axis
  GatheredUnit(const Unit& unit, ConstTensorView shard);

  /// dst [end - begin], any floating dtype = elements [begin, end) of the unit's i-th parameter.
  void copy_range(std::size_t i, std::int64_t begin, std::int64_t end, TensorView dst) const;
  void copy_parameter(std::size_t i, TensorView dst) const { copy_range(i, 0, dst.numel(), dst); }

 private:
  DeviceMesh& device_mesh_;
  Buffer buffer_;
  ConstTensorView all_;        // [S*P]
  std::vector<Piece> pieces_;  // of all ranks, by parameter; offsets into all_
};

/// Copies this rank's part of a whole parameter into `shard`. src has elements [begin, begin + src.numel()) of the parameter.
void scatter_range(Unit& unit, std::size_t i, std::int64_t begin, ConstTensorView src, TensorView shard);
/// The same for one piece, into an array of [piece.numel()] elements.
void scatter_range(DeviceMesh& device_mesh, const Piece& piece, std::int64_t begin, ConstTensorView src, TensorView dst);

}  // namespace mica::fsdp
