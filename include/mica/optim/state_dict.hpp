// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "mica/fsdp/state_tensor.hpp"
#include "mica/optim/optimizer.hpp"

namespace mica::optim {

/// A parameter's key in an optimizer's state: its id, counted through the optimizer's groups, or its full name.
using ParameterKey = std::variant<std::int64_t, std::string>;

/// The state of one parameter.
struct ParameterState {
  fsdp::StateDict tensors;                ///< by kind: "exp_avg"
  std::map<std::string, double> scalars;  ///< "step"
};

/// An optimizer's state as tensors by parameter (docs/parity.md E3). [Note: optimizer state dicts]
/// Full: whole parameters in their shapes, independent of units, ranks and layouts, in host memory. Local: this rank's pieces,
/// 1-D. Parameters without state (no step yet, frozen, plain SGD) have no entry.
/// With a GradScaler, call scaler.take_skipped_steps_off(optimizer) before.
struct OptimStateDict {
  struct Group {
    std::vector<ParameterKey> parameters;
    std::map<std::string, double> options;  ///< for information: loading keeps the optimizer's own
  };
  std::map<ParameterKey, ParameterState> state;
  std::vector<Group> groups;

  [[nodiscard]] bool empty() const { return state.empty() && groups.empty(); }
};

/// The whole state. Gathered unit by unit, so that no device holds more than one unit's state.
/// @param rank0_only  only world rank 0 gets it; the others get an empty one.
/// @collective over the shard axis. Between passes; the host waits.
[[nodiscard]] OptimStateDict full_optim_state_dict(const Optimizer& optimizer, bool rank0_only = true);

/// This rank's part of a full state that every rank has, for load_optim_state_dict(). No communication.
/// @throws CheckpointError naming both shapes, if a tensor's differs from its parameter's.
[[nodiscard]] OptimStateDict shard_full_optim_state_dict(const OptimStateDict& full, const Optimizer& optimizer);
/// The same if only world rank 0 has the full state: whole tensors are broadcast one at a time.
/// @param full  null on the other ranks (ignored there).
/// @collective over the world. @throws Error on all ranks if rank 0 has none.
[[nodiscard]] OptimStateDict scatter_full_optim_state_dict(const OptimStateDict* full, const Optimizer& optimizer);

/// Every parameter's state cut along dim 0 like a sharded model state dict: shard rank r of S has rows [r*c, (r+1)*c) of
/// d0, c = ceil(d0 / S), none past the end. On the host.
/// @collective over the shard axis. Between passes; the host waits.
[[nodiscard]] OptimStateDict sharded_optim_state_dict(const Optimizer& optimizer);
/// This rank's pieces from every rank's rows, for load_optim_state_dict(): the wrapping may differ, the number of shard ranks
/// may not. One tensor is gathered at a time.
/// @collective over the shard axis. @throws Error (on all ranks) for rows other than the rank's own.
[[nodiscard]] OptimStateDict local_from_sharded_optim_state_dict(const OptimStateDict& sharded, const Optimizer& optimizer);

/// This rank's pieces, for load_optim_state_dict() with the same number of ranks and wrapping. On the host.
/// No communication. Between passes; the host waits.
[[nodiscard]] OptimStateDict local_optim_state_dict(const Optimizer& optimizer);

/// The kind set in the units' state dict settings (fsdp::set_state_dict_settings), with their optimizer config.
/// @collective as that one. @throws ConfigError if units' settings differ.
[[nodiscard]] OptimStateDict optim_state_dict(const Optimizer& optimizer);

/// Loads a local (or full) state, keyed by name or id, into this optimizer's wrapping and mesh. Parameters that the dict lacks, or
/// whose unit is frozen here, start without state. Of an optimizer that counts no steps (SGD) the dict knows no number of steps:
/// num_steps() is 1 then, or 0 without momentum.
/// @throws CheckpointError naming a parameter that is not the optimizer's, an unexpected kind or one that is
///         missing, or a wrong size; nothing is changed then. Between passes; the host waits.
void load_optim_state_dict(Optimizer& optimizer, const OptimStateDict& dict);

enum class KeyKind : std::uint8_t { id, name };
/// The same dict with keys of the given kind. Parameters that are not the optimizer's are dropped, and the keys of a group are
/// sorted.
/// @throws ConfigError for a dict that mixes both kinds.
[[nodiscard]] OptimStateDict rekey_optim_state_dict(const OptimStateDict& dict, KeyKind kind, const Optimizer& optimizer);

}  // namespace mica::optim
