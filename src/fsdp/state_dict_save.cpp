#include "mica/fsdp/state_dict.hpp"

#include "state_dict_items.hpp"

#include "mica/core/rounding.hpp"

namespace mica::fsdp {
namespace {

class Saver {
 public:
  Saver(nn::Module& module, const StateDictSettings& settings)
      : module_(module), settings_(settings), items_(state_items(module, "saved")) {
    offload_ = std::visit([](const auto& config) { return config.offload_to_cpu; }, settings.model);
    const auto* full = std::get_if<FullStateDictConfig>(&settings.model);
    keeps_ = !full || !full->rank0_only || items_.roots.front()->device_mesh().mesh().rank() == 0;
  }

  StateDict run() {
    if (settings_.kind == StateDictKind::local) {
      save_shards();
    } else {
      for (Unit* unit : items_.units) save_unit(*unit);
    }
    if (keeps_) save_whole();
    for (Root* root : items_.roots) root->device_mesh().compute().synchronize();
    return std::move(dict_);
  }

 private:
  StateTensor make(DeviceMesh& device_mesh, const Shape& shape, DType dtype) const {
    if (offload_) return StateTensor::on_host(shape, dtype);
    return StateTensor(Tensor(
        device_mesh.pool().allocate(shape.numel() * dtype_bytes(dtype), MemoryRole::snapshot, device_mesh.compute()), shape,
        dtype));
  }

  /// Gathers the unit for as long as it takes to copy what this rank keeps of it.
  void save_unit(Unit& unit) {
    const UnitStorage& storage = *unit.storage();
    const GatheredUnit gathered(unit, storage.master());
    if (!keeps_) return;
    for (const StateItem* item : items_.of_unit(&unit)) {
      std::int64_t first = 0, last = rows_of(item->shape);
      if (settings_.kind == StateDictKind::sharded) {
        const std::int64_t chunk = divide_up(last, storage.shard_size());
        first = std::min(last, storage.shard_rank() * chunk);
        last = std::min(last, first + chunk);
      }
      StateTensor tensor = make(unit.device_mesh(), with_rows(item->shape, last - first), item->dtype);
      const std::int64_t row_numel = row_numel_of(item->shape);
      gathered.copy_range(item->index, first * row_numel, last * row_numel, tensor.view());
      if (settings_.kind == StateDictKind::sharded) tensor.set_part_of(item->shape, first);
      dict_.insert_or_assign(item->key, std::move(tensor));
    }
  }

  void save_shards() {
    require_sharded(items_.units, "saving a local state dict");
    for (const Unit* unit : items_.units) {
      const UnitStorage& storage = *unit->storage();
      const TensorView master = storage.shared_master();
      const TensorView shard = master.slice(0, unpadded_numel(storage, storage.shard_rank()));
      StateTensor tensor{Tensor(shard)};
      if (offload_) {
        tensor = make(unit->device_mesh(), shard.shape, shard.dtype);
        unit->device_mesh().kernels().copy(unit->device_mesh().compute(), shard, tensor.view());
      }
      tensor.set_part_of(Shape{master.numel() * storage.shard_size()}, master.numel() * storage.shard_rank());
      dict_.insert_or_assign(local_key(module_, *unit), std::move(tensor));
    }
  }

  void save_whole() {
    DeviceMesh& device_mesh = items_.roots.front()->device_mesh();
    for (const StateItem* item : items_.of_unit(nullptr)) {
      StateTensor tensor = make(device_mesh, item->shape, item->dtype);
      if (item->shape.numel() > 0) device_mesh.kernels().copy(device_mesh.compute(), item->data, tensor.view());
      dict_.insert_or_assign(item->key, std::move(tensor));
    }
  }

  nn::Module& module_;
  const StateDictSettings& settings_;
  StateItems items_;
  bool offload_ = false;
  bool keeps_ = true;
  StateDict dict_;
};

}  // namespace

StateDict state_dict(nn::Module& module) {
  const StateDictSettings settings = state_dict_settings(module);
  return Saver(module, settings).run();
}

}  // namespace mica::fsdp
