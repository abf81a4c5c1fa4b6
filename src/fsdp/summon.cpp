// SPDX-License-Identifier: Apache-2.0
#include "mica/fsdp/summon.hpp"

#include <algorithm>
#include <exception>
#include <utility>

#include "mica/fsdp/gathered_unit.hpp"
#include "mica/fsdp/unit_tree.hpp"

namespace mica::fsdp {
namespace {

void check_options(const SummonOptions& options) {
  require<ConfigError>(!(options.rank0_only && options.write_back),
                       "summoning full parameters with rank0_only and write_back: the other ranks would keep the old values; "
                       "set write_back = false, or rank0_only = false");
  require<ConfigError>(!(options.with_grads && options.offload_to_cpu),
                       "summoning full parameters with_grads and offload_to_cpu is not supported: turn one of them off");
}

}  // namespace

SummonFullParams::SummonFullParams(nn::Module& module, SummonOptions options)
    : options_(options), units_(units_of(module, options.recurse)), roots_(roots_of(units_)) {
  check_options(options_);
  for (Root* root : roots_) {
    require(root->state() == TrainingState::idle,
            "full parameters are summoned while the root is {}: summoning starts between passes and does not nest",
            training_state_name(root->state()));
  }
  for (Unit* unit : units_) {
    const UnitStorage* storage = unit->storage();
    require(!storage || storage->is_initialized(),
            "full parameters of unit {} are summoned before they have values: call initialize() first", unit->name());
    require<ConfigError>(!options_.with_grads || unit->root().options().use_orig_params,
                         "gradients of unit {} are summoned, which needs original-parameter mode: fsdp.use_orig_params=true", unit->name());
    require(!options_.with_grads || !storage || !storage->has_unsharded_grad(),
            "gradients of unit {} are summoned while they wait, unreduced, for a synchronising backward (no_sync): finish the "
            "accumulation first",
            unit->name());
  }
  if (options_.offload_to_cpu && !options_.rank0_only && !roots_.empty()) {
    roots_.front()->device_mesh().logger().warn(
        "full parameters are summoned to host memory on every rank: each rank of a node holds a copy; rank0_only avoids that");
  }
  for (Root* root : roots_) {
    root->reshard();  // unsharded copies would go stale
    root->schedule().begin_summon();
  }
  open_ = true;
  try {
    for (Unit* unit : units_) {
      if (unit->storage()) gather(*unit);
    }
    for (Root* root : roots_) root->device_mesh().compute().synchronize();
  } catch (...) {
    leave();
    throw;
  }
}

bool SummonFullParams::exposes() const { return !options_.rank0_only || roots_.front()->device_mesh().mesh().rank() == 0; }

void SummonFullParams::gather(Unit& unit) {
  const UnitStorage& storage = *unit.storage();
  const auto gather_kind = [&](TensorView shard, TensorView nn::Parameter::*target, auto&& is_there) {
    if (!shard) return;
    const bool is_sharded = storage.shard_size() > 1;
    const GatheredUnit gathered(unit, shard);
    if (!exposes()) return;
    for (std::size_t i = 0; i < storage.parameters().size(); ++i) {
      if (!is_there(i)) continue;
      nn::Parameter& parameter = *storage.parameters()[i].parameter;
      const Shape& shape = parameter.shape;
      if (!is_sharded && shape.numel() > 0) {
        parameter.*target = shard.slice(storage.layout().begin_of(i), shape.numel()).reshaped(shape);
        continue;
      }
      parameter.*target = keep({.unit = &unit, .index = i, .shard = shard}, shard.dtype);
      gathered.copy_parameter(i, parameter.*target);
    }
  };
  gather_kind(storage.write_master(unit.device_mesh().compute()), &nn::Parameter::data, [](std::size_t) { return true; });
  if (options_.with_grads) {
    gather_kind(storage.sharded_grad(), &nn::Parameter::grad, [&](std::size_t i) { return storage.has_grad(i); });
  }
}

TensorView SummonFullParams::keep(Full full, DType dtype) {
  const Shape& shape = full.unit->storage()->parameters()[full.index].parameter->shape;
  const std::int64_t bytes = shape.numel() * dtype_bytes(dtype);
  DeviceMesh& device_mesh = full.unit->device_mesh();
  if (options_.offload_to_cpu) {
    full.host.resize(static_cast<std::size_t>(bytes));
    full.view = {full.host.data(), shape, dtype};
  } else {
    full.buffer = device_mesh.pool().allocate(bytes, MemoryRole::unsharded_param, device_mesh.compute());
    full.view = {full.buffer.data(), shape, dtype};
  }
  full_.push_back(std::move(full));
  return full_.back().view;
}

void SummonFullParams::close() {
  if (!open_) return;
  try {
    if (options_.write_back) {
      for (const Full& full : full_) scatter_range(*full.unit, full.index, 0, full.view, full.shard);
    }
    for (Root* root : roots_) root->device_mesh().compute().synchronize();
  } catch (...) {
    leave();
    throw;
  }
  leave();
}

void SummonFullParams::leave() noexcept {
  open_ = false;
  for (const Unit* unit : units_) {
    if (!unit->storage()) continue;
    for (const UnitParameter& p : unit->storage()->parameters()) {
      p.parameter->data = {};
      if (options_.with_grads) p.parameter->grad = {};
    }
  }
  full_.clear();
  for (Root* root : roots_) root->schedule().end_summon();
}

SummonFullParams::~SummonFullParams() {
  if (!open_) return;
  const Logger logger = roots_.empty() ? Logger() : roots_.front()->device_mesh().logger();
  try {
    close();
  } catch (const std::exception& error) {
    logger.warn("full parameters could not be written back: {}", error.what());
  }
}

}  // namespace mica::fsdp
