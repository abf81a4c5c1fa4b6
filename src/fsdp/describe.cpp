// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include <fmt/format.h>

#include "mica/fsdp/root.hpp"

namespace mica::fsdp {
namespace {

/// Number of units around `unit`.
int depth_of(const Unit& unit, const std::vector<Unit*>& units) {
  return static_cast<int>(std::ranges::count_if(units, [&](const Unit* other) {
    if (other == &unit) return false;
    return other == units.front() || unit.name().starts_with(other->name() + ".");
  }));
}

}  // namespace

std::string Root::describe() const {
  std::string text = fmt::format("{:<28} {:>14} {:>14} {:>8}  {:<18} {:<6} {}\n", "unit", "parameters", "per rank", "padding", "strategy",
                                 "param", "reduce");
  for (const Unit* each : units_) {
    const std::string name = std::string(2 * static_cast<std::size_t>(depth_of(*each, units_)), ' ') + each->name();
    const UnitStorage* storage = each->storage();
    if (!storage) {
      text += fmt::format("{:<28} {:>14}\n", name, "none");
      continue;
    }
    const ShardLayout& layout = storage->layout();
    text += fmt::format("{:<28} {:>14} {:>14} {:>8}  {:<18} {:<6} {}\n", name, layout.param_numel(), layout.shard_numel(),
                        layout.gathered_numel() - layout.param_numel(), strategy_name(each->options().strategy),
                        dtype_name(each->options().param_dtype()), dtype_name(each->options().reduce_dtype()));
  }
  for (const UnitParameter& p : ignored_parameters_) {
    text += fmt::format("{:<28} {:>14} {:>14} {:>8}  ignored\n", p.full_name, p.parameter->shape.numel(), p.parameter->shape.numel(), 0);
  }
  return text;
}

}  // namespace mica::fsdp
