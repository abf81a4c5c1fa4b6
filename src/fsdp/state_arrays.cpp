// SPDX-License-Identifier: Apache-2.0
#include "mica/fsdp/state_arrays.hpp"

#include <algorithm>

#include "mica/fsdp/gathered_unit.hpp"

namespace mica::fsdp {
namespace {

StateTensor in_pool(const DeviceMesh& device_mesh, const Shape& shape, DType dtype) {
  const std::int64_t bytes = shape.numel() * dtype_bytes(dtype);
  return StateTensor(Tensor(device_mesh.pool().allocate(bytes, MemoryRole::snapshot, device_mesh.compute()), shape, dtype));
}

}  // namespace

std::optional<Piece> StateArray::piece() const {
  if (!unit) return make_piece(0, shape, 0, shape.numel(), 0);
  const Piece* found = unit->root().piece_of(*unit, index);
  return found ? std::optional(*found) : std::nullopt;
}

std::vector<const StateArray*> StateArrays::of_unit(const Unit* unit) const {
  std::vector<const StateArray*> found;
  for (const StateArray& array : all) {
    if (array.unit == unit) found.push_back(&array);
  }
  return found;
}

DeviceMesh& StateArrays::device_mesh_of(const StateArray& array) const {
  return array.unit ? array.unit->device_mesh() : roots.front()->device_mesh();
}

void StateArrays::synchronize() const {
  for (const Root* root : roots) root->device_mesh().compute().synchronize();
}

StateDict save_rows(const StateArrays& arrays, const KeptRows& kept, bool on_host) {
  StateDict dict;
  const auto save = [&](const StateArray& array, const auto& copy_range) {
    const std::optional<Rows> rows = kept(array);
    if (!rows) return;
    const std::int64_t row_numel = row_numel_of(array.shape);
    const Shape shape = with_rows(array.shape, rows->end - rows->begin);
    StateTensor tensor = on_host ? StateTensor::on_host(shape, array.dtype) : in_pool(arrays.device_mesh_of(array), shape, array.dtype);
    if (tensor.numel() > 0) copy_range(rows->begin * row_numel, rows->end * row_numel, tensor.view());
    tensor.set_part_of(array.shape, rows->begin);
    dict.insert_or_assign(array.key, std::move(tensor));
  };
  for (const Unit* unit : arrays.units) {
    const std::vector<const StateArray*> cut = arrays.of_unit(unit);
    invariant(!cut.empty(), "a unit of a state dict has an array in it");
    const TensorView shard = cut.front()->data;
    const GatheredUnit gathered(*unit, shard ? shard : unit->storage()->master());
    for (const StateArray* array : cut) {
      save(*array, [&](std::int64_t begin, std::int64_t end, TensorView dst) { gathered.copy_range(array->index, begin, end, dst); });
    }
  }
  for (const StateArray* array : arrays.of_unit(nullptr)) {
    const DeviceMesh& device_mesh = arrays.device_mesh_of(*array);
    save(*array, [&](std::int64_t begin, std::int64_t end, TensorView dst) {
      device_mesh.kernels().copy(device_mesh.compute(), array->data.slice(begin, end - begin), dst);
    });
  }
  return dict;
}

void store(const StateArrays& arrays, const StateArray& array, std::int64_t begin, ConstTensorView src) {
  if (src.numel() == 0) return;
  DeviceMesh& device_mesh = arrays.device_mesh_of(array);
  // Also on a rank that holds nothing of the array: ranks wait for released masters equally often.
  const TensorView to = array.unit && !array.data ? array.unit->storage()->write_master(device_mesh.compute()) : array.data;
  const std::optional<Piece> piece = array.piece();
  if (!piece) return;
  scatter_range(device_mesh, *piece, begin, src, to.slice(piece->offset, piece->numel()));
}

}  // namespace mica::fsdp
