#pragma once

#include <string>
#include <utility>
#include <vector>

#include "mica/fsdp/gathered_unit.hpp"
#include "mica/fsdp/root.hpp"
#include "mica/fsdp/state_tensor.hpp"

namespace mica::fsdp {

/// A tensor of the model as state dicts name it.
struct StateItem {
  std::string key;
  Shape shape;
  DType dtype;  // in state dicts
  Unit* unit = nullptr;  // that shards it; null for what is whole on every rank
  std::size_t index = 0;  // of the parameter in the unit
  TensorView data;        // of what is whole, in the dtype it has now
};

/// Everything that a module's state dict has, in module order, parameters before buffers; checked to be usable now.
struct StateItems {
  std::vector<Unit*> units;  // that have parameters
  std::vector<Root*> roots;
  std::vector<StateItem> items;

  [[nodiscard]] std::vector<const StateItem*> of_unit(const Unit* unit) const;  // null: what is whole
  [[nodiscard]] std::vector<std::string> keys() const;
};
/// @param action  "saved", "loaded": for error texts.
[[nodiscard]] StateItems state_items(nn::Module& module, std::string_view action);

/// The key of each unit in a local state dict.
[[nodiscard]] std::string local_key(nn::Module& module, const Unit& unit);
/// What of a shard is in a local state dict: up to the last parameter's end.
[[nodiscard]] std::int64_t unpadded_numel(const UnitStorage& storage, int shard_rank);
/// What of this rank's shard is no parameter's: ranges [begin, end), in order.
[[nodiscard]] std::vector<std::pair<std::int64_t, std::int64_t>> padding_of(const UnitStorage& storage);
/// Refuses what is not sharded.
void require_sharded(const std::vector<Unit*>& units, std::string_view what);

}  // namespace mica::fsdp
