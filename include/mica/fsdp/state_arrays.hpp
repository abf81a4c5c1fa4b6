// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "mica/fsdp/root.hpp"
#include "mica/fsdp/state_tensor.hpp"

namespace mica::fsdp {

/// One array of a state dict (a model's or an optimizer's): sharded as a unit's parameter is, or whole on every rank.
struct StateArray {
  std::string key;
  Shape shape;            ///< of the whole array
  DType dtype;            ///< in state dicts
  Unit* unit = nullptr;   ///< the unit that shards it; null: whole on every rank
  std::size_t index = 0;  ///< of its parameter in the unit
  TensorView data{};      ///< this rank's shard of the unit, [P]; absent: the master. If whole: all of it, in its current dtype

  /// What this rank holds of it: all if it is whole; no value if it is sharded and this rank has no element.
  [[nodiscard]] std::optional<Piece> piece() const;
};

/// Arrays of one module tree.
struct StateArrays {
  std::vector<Unit*> units;  ///< the units that hold some of them, in module order
  std::vector<Root*> roots;  ///< at least one
  std::vector<StateArray> all;

  /// @param unit  null: the whole ones.
  [[nodiscard]] std::vector<const StateArray*> of_unit(const Unit* unit) const;
  /// The mesh of its unit; for a whole array, the first root's.
  [[nodiscard]] DeviceMesh& device_mesh_of(const StateArray& array) const;
  /// Waits for all enqueued work.
  void synchronize() const;
};

/// The rows that a rank keeps of an array; no value: the array is not in its dict.
using KeptRows = std::function<std::optional<Rows>(const StateArray& array)>;
/// Saves arrays into host memory or the devices' pools: gathers unit by unit, each only until this rank's rows are copied.
/// Enqueues. @collective over each unit's shard axis
[[nodiscard]] StateDict save_rows(const StateArrays& arrays, const KeptRows& kept, bool on_host);

/// Loads: stores elements [begin, begin + src.numel()) of an array, as far as this rank holds them. Enqueues.
void store(const StateArrays& arrays, const StateArray& array, std::int64_t begin, ConstTensorView src);

}  // namespace mica::fsdp
