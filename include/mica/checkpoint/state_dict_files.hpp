// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "mica/checkpoint/save.hpp"
#include "mica/comm/host_comm.hpp"
#include "mica/fsdp/state_dict.hpp"
#include "mica/optim/state_dict.hpp"

namespace mica::checkpoint {

// State dicts in files (docs/parity.md E2-E4). [Note: state dict files]
// A folder with a manifest, checksums and model.h5, like a checkpoint of a run; it appears complete or not at all. The kinds
// differ in what each rank writes:
//   full     rank 0 writes one file with whole tensors; the other ranks write none
//   sharded  each shard rank writes its rows of every tensor, cut as fsdp::state_dict() cuts them
//   local    each shard rank writes its shards as the units store them, like save()
// load() reads any of them into any mesh, sharding and wrapping, as do model.init_from, mica-inspect and mica-convert;
// h5py reads model.h5.

/// Writes a state dict of `state.root` and, unless it is null, of `state.optimizer`. `full` and `sharded` gather into host memory, unit
/// by unit: the whole state on rank 0, or each rank's rows.
/// @param folder  must not exist, nor may `folder`.tmp; its parent must exist.
/// @throws what save() throws, on all ranks; ConfigError (the folder). @collective over `comm`: all ranks of the mesh.
SaveReport save_state_dict(const std::string& folder, fsdp::StateDictKind kind, const SaveState& state, const HostComm& comm);

/// The part of every tensor to read: rows [rank * c, (rank + 1) * c) along dim 0, c = ceil(d0 / num_ranks).
struct ReadPart {
  int rank = 0;
  int num_ranks = 1;  ///< 1: everything
};

/// Tensors by name from such a folder, or from a run's checkpoint, into host memory: full, or sharded with num_ranks > 1
/// (ignored parameters and buffers whole, a scalar as [1]). For fsdp::load_state_dict() or other uses; needs no model. Blocks
/// are verified. No communication.
/// @param folder  as resolve_checkpoint() takes it. @throws ConfigError, CheckpointError.
[[nodiscard]] fsdp::StateDict read_state_dict(const std::string& folder, const ReadPart& part = {});
/// The same for the optimizer's state, by name; empty if the folder holds the model only. For load_optim_state_dict() (full),
/// local_from_sharded_optim_state_dict().
[[nodiscard]] optim::OptimStateDict read_optim_state_dict(const std::string& folder, const ReadPart& part = {});

}  // namespace mica::checkpoint
