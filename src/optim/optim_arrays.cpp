// SPDX-License-Identifier: Apache-2.0
#include "optim_arrays.hpp"

#include <algorithm>

#include "mica/fsdp/gathered_unit.hpp"

namespace mica::optim {

fsdp::StateArrays arrays_of(const Optimizer& optimizer, std::string_view kind) {
  const fsdp::Root& root = optimizer.root();
  fsdp::StateArrays arrays{.units = {}, .roots = {&optimizer.root()}, .all = {}};
  for (const StateShard& shard : optimizer.state()) {
    if (shard.kind != kind) continue;
    arrays.units.push_back(*std::ranges::find(root.units(), shard.storage, &fsdp::Unit::storage));
    const std::vector<fsdp::UnitParameter>& parameters = shard.storage->parameters();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      arrays.all.push_back({parameters[i].full_name, parameters[i].parameter->shape, DType::f32, arrays.units.back(), i, shard.data});
    }
  }
  for (const IgnoredState& each : optimizer.ignored_state()) {
    if (each.kind != kind) continue;
    const auto p = std::ranges::find(root.ignored_parameters(), each.parameter, &fsdp::UnitParameter::full_name);
    arrays.all.push_back({each.parameter, p->parameter->shape, DType::f32, nullptr, 0, each.data});
  }
  return arrays;
}

Parameters parameters_of(const Optimizer& optimizer) {
  Parameters found;
  const auto add = [&](const fsdp::UnitParameter& p, fsdp::Unit* unit, std::size_t index) {
    found.insert_or_assign(p.full_name, fsdp::StateArray{p.full_name, p.parameter->shape, DType::f32, unit, index});
  };
  for (fsdp::Unit* unit : optimizer.root().units()) {
    for (std::size_t i = 0; unit->storage() && i < unit->storage()->parameters().size(); ++i) {
      add(unit->storage()->parameters()[i], unit, i);
    }
  }
  for (const fsdp::UnitParameter& p : optimizer.root().ignored_parameters()) add(p, nullptr, 0);
  return found;
}

fsdp::StateTensor part_of(const fsdp::StateTensor& whole, const fsdp::Piece& piece, fsdp::DeviceMesh& device_mesh) {
  fsdp::StateTensor part = fsdp::StateTensor::on_host(Shape{piece.numel()}, DType::f32);
  fsdp::scatter_range(device_mesh, piece, 0, whole.view(), part.view());
  return part;
}

fsdp::StateDict parts_of(const fsdp::StateDict& whole, const fsdp::StateArray& parameter, fsdp::DeviceMesh& device_mesh) {
  fsdp::StateDict parts;
  if (const std::optional<fsdp::Piece> piece = parameter.piece()) {
    for (const auto& [kind, tensor] : whole) parts[kind] = part_of(tensor, *piece, device_mesh);
  }
  device_mesh.compute().synchronize();  // even where nothing is kept: `whole` may view memory that is freed after this
  return parts;
}

}  // namespace mica::optim
