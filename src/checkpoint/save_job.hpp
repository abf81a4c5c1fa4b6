// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "mica/checkpoint/save.hpp"
#include "mica/fsdp/state_tensor.hpp"

#include "shard_file.hpp"

namespace mica::checkpoint {

/// Everything a save needs to know, taken from the model between two steps.
struct SaveJob {
  std::string folder;                            ///< the complete checkpoint's folder
  bool is_in_run = true;                         ///< it is RUN/checkpoints/step-N, so leftovers of earlier jobs there are deleted first
  Manifest header;                               ///< without files, index and tokenizer
  std::shared_ptr<const HfTokenizer> tokenizer;  ///< rank 0's; null: none
  ShardContents contents;                        ///< refers to the model's own memory, or to a snapshot
  std::vector<fsdp::StateTensor> converted;      ///< copies of buffers whose current dtype is not the original one
  bool writes_shard = false;                     ///< this rank is the replica that writes the file of its shard
};

/// The job as this rank alone knows it. Not collective. Between two steps; the compute stream is idle, and state.run_id is the same on all
/// ranks.
/// @param shard_rank  the shard whose file `contents` describes; writes_shard is not set
[[nodiscard]] SaveJob describe_save(const std::string& run_folder, const SaveState& state, int shard_rank);
/// Waits for the compute stream; ranks agree on step and run id. @collective
[[nodiscard]] SaveJob make_save_job(const std::string& run_folder, const SaveState& state, const HostComm& comm);
/// save() for a job: communicates only over `comm`, and reads the model only through job.contents. @collective
SaveReport run_save_job(const SaveJob& job, const HostComm& comm, const SaveOptions& options, const Retries& retries);

/// The units of a root that have parameters.
[[nodiscard]] std::vector<const fsdp::UnitStorage*> unit_storages(const fsdp::Root& root);
/// These units, then whole_tensors().
[[nodiscard]] std::vector<SavedUnit> saved_units(const fsdp::Root& root);
/// Their entries in the manifest.
[[nodiscard]] std::vector<UnitEntry> unit_entries(const std::vector<SavedUnit>& units);

}  // namespace mica::checkpoint
