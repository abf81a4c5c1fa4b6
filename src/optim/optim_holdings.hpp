#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "mica/fsdp/state_tensor.hpp"
#include "mica/optim/optimizer.hpp"

namespace mica::optim {

/// Full name -> parameter, also of those outside units.
[[nodiscard]] std::map<std::string_view, const nn::Parameter*> parameters_of(const Optimizer& optimizer);

/// The state shards of one unit, by kind. Empty while it has none.
[[nodiscard]] std::map<std::string, TensorView> shards_of(const Optimizer& optimizer, const fsdp::UnitStorage* storage);

/// What this rank has of one parameter, and its state by kind. Ignored parameters are whole everywhere.
struct Holding {
  std::string name;
  Shape shape;  // of the whole parameter
  fsdp::Piece piece;
  std::map<std::string, TensorView> state;  // each [piece.numel()]
};
[[nodiscard]] std::vector<Holding> holdings_of(const Optimizer& optimizer);

/// The elements of a whole tensor that this rank holds, in the order of its state.
[[nodiscard]] fsdp::StateTensor part_of(const fsdp::StateTensor& whole, const Holding& holding, const fsdp::DeviceMesh& device_mesh);

/// This rank's pieces of whole tensors of one parameter; none if it has no piece. The host waits.
[[nodiscard]] fsdp::StateDict pieces_of(const fsdp::StateDict& whole, std::string_view name, const std::vector<Holding>& holdings,
                                        const fsdp::DeviceMesh& device_mesh);

}  // namespace mica::optim
