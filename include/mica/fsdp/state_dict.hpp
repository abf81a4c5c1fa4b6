// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <vector>

#include "mica/fsdp/state_dict_settings.hpp"
#include "mica/fsdp/state_tensor.hpp"

namespace mica::fsdp {

// A model's parameters and buffers by name, in memory (docs/parity.md E2, E4). Of a root, an inner unit or a plain module that
// holds several roots; names are relative to it. Kind and config are those of its units (state_dict_settings.hpp).
// Parameters are in the master's dtype; buffers, whole in every kind, in their original dtype; ignored parameters whole
// as they are. A parameter shared by several modules appears once, under its first name.
// All: @collective over the world. Roots must be idle and initialised. The compute stream is synchronised.

/// full: copies. sharded: copies of this rank's rows, StateTensor::row_begin says which. local: "<unit>.flat_param",
/// the shard itself without the padding at its end, not a copy (unless it is offloaded): it changes as the master does. It may
/// be written until the next forward: state_dict() reshards all units. To write later, make the dict again, on all ranks.
/// It includes the gaps between its parameters (alignment; rows that a rank lacks under per-parameter sharding), which are zero
/// after a load.
/// @throws Error inside a pass, and for local with a unit that is not sharded; ConfigError when settings differ.
[[nodiscard]] StateDict state_dict(nn::Module& module);

struct LoadStateDictOptions {
  bool strict = true;  ///< a missing or unexpected key is an error; otherwise it is reported
  /// full: rank 0's dict is broadcast unit by unit; those of other ranks are ignored.
  bool from_rank0 = false;
};
/// Keys in the order of names.
struct LoadStateDictReport {
  std::vector<std::string> missing;     ///< in the model but in no rank's dict
  std::vector<std::string> unexpected;  ///< in this rank's dict but not in the model
};
/// Loads the values. full: every rank gives the whole dict and takes its part without communication. sharded: each rank gives
/// its rows. local: each rank gives its shards; wrapping and world must be the same.
/// @throws ConfigError, the same on all ranks, naming missing and unexpected keys, or a key that differs in shape, numel,
///         padding or dtype; Error inside a pass, and for sharded with a unit that is not sharded.
LoadStateDictReport load_state_dict(nn::Module& module, const StateDict& dict, const LoadStateDictOptions& options = {});

/// The same from any pieces that the ranks hold between them: full and sharded dicts of another world, some on each rank. If
/// several ranks have a piece, the lowest rank's is used; if none has it, that is an error that names parameter and rows.
LoadStateDictReport load_state_dict_pieces(nn::Module& module, std::span<const StateDict> pieces, bool strict = true);

}  // namespace mica::fsdp
