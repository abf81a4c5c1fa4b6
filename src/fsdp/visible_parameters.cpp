// SPDX-License-Identifier: Apache-2.0
#include "mica/fsdp/visible_parameters.hpp"

#include <algorithm>

namespace mica::fsdp {
namespace {

VisibleParameter flat_parameter(const Unit& unit) {
  const UnitStorage& storage = *unit.storage();
  const std::string name = unit.name() == "root" ? "flat_param" : unit.name() + ".flat_param";
  return {name, nullptr, storage.master(), storage.sharded_grad(), storage.is_trainable()};
}

VisibleParameter original_parameter(const Root& root, const Unit& unit, std::size_t index) {
  const UnitStorage& storage = *unit.storage();
  const UnitParameter& named = storage.parameters()[index];
  const nn::Parameter& parameter = *named.parameter;
  VisibleParameter shown{named.full_name, &parameter, {nullptr, Shape{0}, DType::f32}, {}, parameter.requires_grad};
  if (const Piece* piece = root.piece_of(unit, index)) {
    if (storage.is_initialized()) shown.data = root.master(*piece);
    shown.grad = root.grad(*piece);
  }
  if (parameter.data) shown.data = parameter.data;
  if (storage.has_unsharded_grad() && parameter.grad_written && !parameter.grad_turns) shown.grad = parameter.grad;
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
    for (std::size_t i = 0; i < storage->parameters().size(); ++i) shown.push_back(original_parameter(root, *unit, i));
  }
  return shown;
}

}  // namespace mica::fsdp
