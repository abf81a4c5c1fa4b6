#include "optim_holdings.hpp"

#include "mica/fsdp/gathered_unit.hpp"

namespace mica::optim {

std::map<std::string_view, const nn::Parameter*> parameters_of(const Optimizer& optimizer) {
  std::map<std::string_view, const nn::Parameter*> found;
  for (const fsdp::Unit* unit : optimizer.root().units()) {
    if (!unit->storage()) continue;
    for (const fsdp::UnitParameter& p : unit->storage()->parameters()) found[p.full_name] = p.parameter;
  }
  for (const fsdp::UnitParameter& p : optimizer.root().ignored_parameters()) found[p.full_name] = p.parameter;
  return found;
}

std::map<std::string, TensorView> shards_of(const Optimizer& optimizer, const fsdp::UnitStorage* storage) {
  std::map<std::string, TensorView> found;
  for (const StateShard& shard : optimizer.state()) {
    if (shard.storage == storage) found[shard.kind] = shard.data;
  }
  return found;
}

std::vector<Holding> holdings_of(const Optimizer& optimizer) {
  std::vector<Holding> holdings;
  const fsdp::Root& root = optimizer.root();
  for (const fsdp::Piece& piece : root.pieces()) {
    const fsdp::UnitParameter& p = root.parameter(piece);
    Holding& holding = holdings.emplace_back(Holding{.name = p.full_name, .shape = p.parameter->shape, .piece = piece});
    for (const auto& [kind, shard] : shards_of(optimizer, &root.storage(piece))) {
      holding.state[kind] = shard.slice(piece.offset, piece.numel());
    }
  }
  for (const fsdp::UnitParameter& p : root.ignored_parameters()) {
    const Shape& shape = p.parameter->shape;
    Holding& holding = holdings.emplace_back(
        Holding{.name = p.full_name, .shape = shape, .piece = fsdp::make_piece(0, shape, 0, shape.numel(), 0)});
    for (const IgnoredState& each : optimizer.ignored_state()) {
      if (each.parameter == p.full_name) holding.state[each.kind] = each.data;
    }
  }
  return holdings;
}

fsdp::StateTensor part_of(const fsdp::StateTensor& whole, const Holding& holding, const fsdp::DeviceMesh& device_mesh) {
  const fsdp::Piece& piece = holding.piece;
  fsdp::StateTensor part = fsdp::StateTensor::on_host(Shape{piece.numel()}, DType::f32);
  for (std::int64_t i = 0; i < piece.num_runs(); ++i) {
    const fsdp::Run run = piece.run(i);
    device_mesh.kernels().copy(device_mesh.compute(), whole.view().slice(run.begin, run.numel()),
                               part.view().slice(run.offset - piece.offset, run.numel()));
  }
  return part;
}

fsdp::StateDict pieces_of(const fsdp::StateDict& whole, std::string_view name, const std::vector<Holding>& holdings,
                          const fsdp::DeviceMesh& device_mesh) {
  fsdp::StateDict pieces;
  for (const Holding& holding : holdings) {
    if (holding.name != name) continue;
    for (const auto& [kind, tensor] : whole) pieces[kind] = part_of(tensor, holding, device_mesh);
  }
  device_mesh.compute().synchronize();
  return pieces;
}

}  // namespace mica::optim
