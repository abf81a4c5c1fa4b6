// SPDX-License-Identifier: Apache-2.0
#include "state_dict_check.hpp"

#include <algorithm>

#include "mica/core/error.hpp"

#include "optim_arrays.hpp"

namespace mica::optim {

OptimStateDict by_name(const OptimStateDict& dict, const Optimizer& optimizer) {
  return rekey_optim_state_dict(dict, KeyKind::name, optimizer);
}

void check_state(const OptimStateDict& dict, const Optimizer& optimizer, bool is_full) {
  const std::vector<std::string> kinds = optimizer.state_kinds();
  const Parameters parameters = parameters_of(optimizer);
  for (const auto& [key, state] : dict.state) {
    const std::string& name = name_of(key);
    const auto parameter = parameters.find(name);
    require<CheckpointError>(parameter != parameters.end(), "the state dict has state of {}, which is no parameter of the optimizer", name);
    for (const auto& [kind, tensor] : state.tensors) {
      require<CheckpointError>(std::ranges::find(kinds, kind) != kinds.end(),
                               "the state dict has {} of parameter {}, but {} keeps no such state: the dict is from another optimizer",
                               kind, name, optimizer.name());
      const Shape& shape = parameter->second.shape;
      require<CheckpointError>(!is_full || (tensor.shape() == shape && tensor.dtype() == DType::f32),
                               "{} of parameter {} is {} {} in the state dict, expected fp32 {}", kind, name, dtype_name(tensor.dtype()),
                               tensor.shape().to_string(), shape.to_string());
    }
    for (const std::string& kind : kinds) {
      require<CheckpointError>((!is_full && state.tensors.empty()) || state.tensors.contains(kind),
                               "the state dict has no {} of parameter {}", kind, name);
    }
    require<CheckpointError>(!optimizer.counts_steps() || state.scalars.contains(kStep),
                             "the state dict has no step of parameter {}, which {} needs", name, optimizer.name());
    const double steps = optimizer.counts_steps() ? state.scalars.at(kStep) : 1;
    require<CheckpointError>(steps >= 1 && steps == static_cast<double>(static_cast<std::int64_t>(steps)),
                             "the state dict has step {} of parameter {}, expected a whole number from 1", steps, name);
  }
}

}  // namespace mica::optim
