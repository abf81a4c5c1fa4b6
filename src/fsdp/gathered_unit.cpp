// SPDX-License-Identifier: Apache-2.0
#include "mica/fsdp/gathered_unit.hpp"

#include <algorithm>

#include "mica/fsdp/root.hpp"

namespace mica::fsdp {

GatheredUnit::GatheredUnit(const Unit& unit, ConstTensorView shard) : device_mesh_(unit.device_mesh()), all_(shard) {
  const UnitStorage& storage = *unit.storage();
  const int shard_size = storage.shard_size();
  if (shard_size > 1) {
    Stream& compute = device_mesh_.compute();
    const Shape gathered{shard.numel() * shard_size};
    buffer_ = device_mesh_.pool().allocate(gathered.numel() * dtype_bytes(shard.dtype), MemoryRole::unsharded_param, compute);
    const TensorView all{buffer_.data(), gathered, shard.dtype};
    device_mesh_.mesh().shard().all_gather(compute, unit.name().c_str(), shard, all);
    all_ = all;
  }
  for (int rank = 0; rank < shard_size; ++rank) {
    for (Piece& piece : storage.layout().pieces(rank)) {
      piece.offset += rank * shard.numel();
      pieces_.push_back(piece);
    }
  }
  std::ranges::stable_sort(pieces_, {}, &Piece::parameter);
}

void GatheredUnit::copy_range(std::size_t i, std::int64_t begin, std::int64_t end, TensorView dst) const {
  for (const Piece& piece : std::ranges::equal_range(pieces_, i, {}, &Piece::parameter)) {
    for_each_common(piece, begin, end, [&](const Run& run) {
      device_mesh_.kernels().copy(device_mesh_.compute(), all_.slice(run.offset, run.numel()), dst.slice(run.begin - begin, run.numel()));
    });
  }
}

void scatter_range(Unit& unit, std::size_t i, std::int64_t begin, ConstTensorView src, TensorView shard) {
  const Piece* piece = unit.root().piece_of(unit, i);
  if (piece) scatter_range(unit.device_mesh(), *piece, begin, src, shard.slice(piece->offset, piece->numel()));
}

void scatter_range(DeviceMesh& device_mesh, const Piece& piece, std::int64_t begin, ConstTensorView src, TensorView dst) {
  for_each_common(piece, begin, begin + src.numel(), [&](const Run& run) {
    device_mesh.kernels().copy(device_mesh.compute(), src.slice(run.begin - begin, run.numel()),
                               dst.slice(run.offset - piece.offset, run.numel()));
  });
}

}  // namespace mica::fsdp
