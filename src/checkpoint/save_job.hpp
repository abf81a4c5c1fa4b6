// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "mica/checkpoint/save.hpp"
#include "mica/fsdp/state_tensor.hpp"

#include "shard_file.hpp"

namespace mica::checkpoint {

/// All that a save needs to know, taken from the model between two steps.
struct SaveJob {
  std::string folder;                            ///< the checkpoint's, once it is complete
  bool is_in_run = true;                         ///< it is RUN/checkpoints/step-N: what an earlier job left half done there goes first
  Manifest header;                               ///< without files, index and tokenizer
  std::shared_ptr<const HfTokenizer> tokenizer;  ///< rank 0's; null: none
  ShardContents contents;                        ///< of the model's own memory, unless it was given a copy
  std::vector<fsdp::StateTensor> converted;      ///< of buffers that a forward sees in another dtype
  bool writes_shard = false;                     ///< of its replicas this rank writes the file of its shard
};

/// What this rank knows by itself. Between two steps; the compute stream is idle, and state.run_id is the same on all ranks.
/// @param shard_rank  whose file `contents` are; writes_shard is not set
[[nodiscard]] SaveJob describe_save(const std::string& run_folder, const SaveState& state, int shard_rank);
/// Waits for the compute stream; ranks agree on step and run id. @collective
[[nodiscard]] SaveJob make_save_job(const std::string& run_folder, const SaveState& state, const HostComm& comm);
/// Communicates over `comm` alone and reads the model only through the contents. @collective. What save() says.
SaveReport run_save_job(const SaveJob& job, const HostComm& comm, const SaveOptions& options);

/// Does this rank write the file of its shard? Replicas take turns: neighbouring shards' files are of different nodes.
[[nodiscard]] bool writes_shard_file(const Mesh& mesh);

/// The units of a root that have parameters.
[[nodiscard]] std::vector<const fsdp::UnitStorage*> unit_storages(const fsdp::Root& root);
/// They, and behind them whole_tensors().
[[nodiscard]] std::vector<SavedUnit> saved_units(const fsdp::Root& root);
/// As the manifest lists them.
[[nodiscard]] std::vector<UnitEntry> unit_entries(const std::vector<SavedUnit>& units);

}  // namespace mica::checkpoint
