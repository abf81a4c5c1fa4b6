#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "mica/fsdp/root.hpp"
#include "mica/fsdp/state_tensor.hpp"

namespace mica::fsdp {

/// One array of a state dict, of a model's or of an optimizer's: cut as a unit's parameter is, or whole on every rank.
struct StateArray {
  std::string key;
  Shape shape;            ///< of the whole array
  DType dtype;            ///< in state dicts
  Unit* unit = nullptr;   ///< that cuts it; null: every rank has it whole
  std::size_t index = 0;  ///< of its parameter in the unit
  TensorView data{};      ///< this rank's shard of the unit, [P]; absent: the master. Or all of it, in the dtype it has now

  /// What this rank has of it: all of what is whole; nothing where it has no element of what is cut.
  [[nodiscard]] std::optional<Piece> piece() const;
};

/// Arrays of one module tree.
struct StateArrays {
  std::vector<Unit*> units;  ///< that have some of them, in module order
  std::vector<Root*> roots;  ///< at least one
  std::vector<StateArray> all;

  /// @param unit  null: those that are whole.
  [[nodiscard]] std::vector<const StateArray*> of_unit(const Unit* unit) const;
  /// Of its unit; of what is whole, the first root's.
  [[nodiscard]] DeviceMesh& device_mesh_of(const StateArray& array) const;
  /// Waits for all that is enqueued.
  void synchronize() const;
};

/// The rows that a rank keeps of an array; none: the array is not in its dict.
using KeptRows = std::function<std::optional<Rows>(const StateArray& array)>;
/// Saves arrays, into host memory or the devices' pools: gathers unit by unit, each for as long as it takes to copy what this
/// rank keeps. Enqueues. @collective over each unit's shard axis
[[nodiscard]] StateDict save_rows(const StateArrays& arrays, const KeptRows& kept, bool on_host);

/// Loads: stores elements [begin, begin + src.numel()) of an array where this rank has some of them. Enqueues.
void store(const StateArrays& arrays, const StateArray& array, std::int64_t begin, ConstTensorView src);

}  // namespace mica::fsdp
