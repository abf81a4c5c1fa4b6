#include "mica/fsdp/visible_parameters.hpp"

#include <algorithm>

namespace mica::fsdp {
namespace {

VisibleParameter flat_parameter(const Unit& unit) {
  const UnitStorage& storage = *unit.storage();
  const std::string name = unit.name() == "root" ? "flat_param" : unit.name() + ".flat_param";
  return {name, nullptr, storage.master(), storage.sharded_grad(), storage.is_trainable()};
}

VisibleParameter original_parameter(const UnitStorage& storage, std::size_t index, const std::vector<Piece>& pieces) {
  const UnitParameter& named = storage.parameters()[index];
  const nn::Parameter& parameter = *named.parameter;
  VisibleParameter shown{named.full_name, &parameter, {nullptr, Shape{0}, DType::f32}, {}, parameter.requires_grad};
  const auto piece = std::ranges::find(pieces, named.full_name, &Piece::parameter);
  if (piece != pieces.end()) {
    if (storage.is_initialized()) shown.data = storage.master().slice(piece->offset, piece->numel());
    if (storage.has_grad(index)) shown.grad = storage.sharded_grad().slice(piece->offset, piece->numel());
  }
  if (parameter.data) shown.data = parameter.data;
  if (storage.has_unsharded_grad() && parameter.grad_written) shown.grad = parameter.grad;
  return shown;
}

}  // namespace

std::vector<VisibleParameter> visible_parameters(const Root& root) {
  std::vector<VisibleParameter> shown;
  for (const Unit* unit : root.units()) {
    const UnitStorage* storage = unit->storage();
    if (!storage) continue;
    if (!root.options().use_orig_params) {
      shown.push_back(flat_parameter(*unit));
      continue;
    }
    const std::vector<Piece> pieces = storage->layout().pieces(storage->shard_rank());
    for (std::size_t i = 0; i < storage->parameters().size(); ++i) shown.push_back(original_parameter(*storage, i, pieces));
  }
  return shown;
}

}  // namespace mica::fsdp
