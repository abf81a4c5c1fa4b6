// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "mica/optim/state_dict.hpp"

#include "gradients.hpp"
#include "optim_arrays.hpp"
#include "state_dict_check.hpp"

namespace mica::optim {

namespace {

/// A write that is done once everything has been checked.
struct Transfer {
  fsdp::StateTensor from;
  TensorView to;
};

/// @throws CheckpointError where a kind is missing or has neither the piece's size nor the parameter's.
std::vector<Transfer> transfers_into(const Optimizer& optimizer, const OptimStateDict& dict) {
  std::vector<Transfer> transfers;
  for (const std::string& kind : optimizer.state_kinds()) {
    for (const fsdp::StateArray& array : arrays_of(optimizer, kind).all) {
      const auto found = dict.state.find(array.key);
      const std::optional<fsdp::Piece> piece = array.piece();
      if (found == dict.state.end() || !piece) continue;
      const auto tensor = found->second.tensors.find(kind);
      require<CheckpointError>(tensor != found->second.tensors.end(), "the state dict has no {} of parameter {} on this rank", kind,
                               array.key);
      const bool is_whole = tensor->second.shape() == array.shape;
      require<CheckpointError>(is_whole || tensor->second.shape() == Shape{piece->numel()},
                               "{} of parameter {} has shape {} in the state dict, expected this rank's {} elements or {}", kind, array.key,
                               tensor->second.shape().to_string(), piece->numel(), array.shape.to_string());
      transfers.push_back({is_whole ? part_of(tensor->second, *piece, optimizer.root().device_mesh()) : tensor->second,
                           array.data.slice(piece->offset, piece->numel())});
    }
  }
  return transfers;
}

}  // namespace

void load_optim_state_dict(Optimizer& optimizer, const OptimStateDict& dict) {
  require_idle(optimizer.root(), "load_optim_state_dict");
  const fsdp::DeviceMesh& device_mesh = optimizer.root().device_mesh();
  const OptimStateDict named = by_name(dict, optimizer);
  check_state(named, optimizer, false);
  optimizer.allocate_state();
  const std::vector<Transfer> transfers = transfers_into(optimizer, named);
  for (const StateShard& shard : optimizer.state()) device_mesh.kernels().fill(device_mesh.compute(), shard.data, 0.0);
  for (const IgnoredState& each : optimizer.ignored_state()) device_mesh.kernels().fill(device_mesh.compute(), each.data, 0.0);
  for (const Transfer& t : transfers) device_mesh.kernels().copy(device_mesh.compute(), t.from.view(), t.to);
  const auto with_state = optimizer.parameters_with_state();  // a frozen one has none: its steps count from zero when it is trained again
  std::int64_t most = 0;
  std::map<std::string, std::int64_t> steps;
  for (const auto& [name, parameter] : parameters_of(optimizer)) {
    const auto found = named.state.find(name);
    const bool is_left_out = !optimizer.state_kinds().empty() && !with_state.contains(name);
    const double count = found == named.state.end() || is_left_out ? 0 : optimizer.counts_steps() ? found->second.scalars.at(kStep) : 1;
    steps[name] = static_cast<std::int64_t>(count);
    most = std::max(most, static_cast<std::int64_t>(count));
  }
  optimizer.set_num_steps(most);
  optimizer.set_parameter_steps(steps);
  device_mesh.compute().synchronize();
}

}  // namespace mica::optim
