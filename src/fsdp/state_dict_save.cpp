// SPDX-License-Identifier: Apache-2.0
#include "mica/fsdp/state_dict.hpp"

#include "model_arrays.hpp"

namespace mica::fsdp {
namespace {

/// The units' shards themselves, or copies of them in host memory.
void save_shards(nn::Module& module, const std::vector<Unit*>& units, bool offload, StateDict& dict) {
  require_sharded(units, "saving a local state dict");
  for (Unit* unit : units) {
    const UnitStorage& storage = *unit->storage();
    const TensorView master = storage.write_master(unit->device_mesh().compute());  // the caller may write it
    const TensorView shard = master.slice(0, unpadded_numel(*unit));
    StateTensor tensor{Tensor(shard)};
    if (offload) {
      tensor = StateTensor::on_host(shard.shape, shard.dtype);
      unit->device_mesh().kernels().copy(unit->device_mesh().compute(), shard, tensor.view());
    }
    tensor.set_part_of(Shape{master.numel() * storage.shard_size()}, master.numel() * storage.shard_rank());
    dict.insert_or_assign(local_key(module, *unit), std::move(tensor));
  }
}

}  // namespace

StateDict state_dict(nn::Module& module) {
  const StateDictSettings settings = state_dict_settings(module);
  StateArrays arrays = model_arrays(module, "saved");
  const bool offload = std::visit([](const auto& config) { return config.offload_to_cpu; }, settings.model);
  const auto* full = std::get_if<FullStateDictConfig>(&settings.model);
  const bool keeps = !full || !full->rank0_only || arrays.roots.front()->device_mesh().mesh().rank() == 0;
  StateDict shards;
  if (settings.kind == StateDictKind::local) {
    for (Root* root : arrays.roots) root->reshard();  // unsharded copies would not see what the caller writes
    save_shards(module, arrays.units, offload, shards);
    arrays.units.clear();  // only whole arrays remain
  }
  const auto kept = [&](const StateArray& array) -> std::optional<Rows> {
    if (!keeps) return std::nullopt;
    if (settings.kind != StateDictKind::sharded || !array.unit) return rows_of_part(array.shape, 0, 1);
    return rows_of_part(array.shape, array.unit->storage()->shard_rank(), array.unit->storage()->shard_size());
  };
  StateDict dict = save_rows(arrays, kept, offload);
  dict.merge(shards);
  arrays.synchronize();
  return dict;
}

}  // namespace mica::fsdp
