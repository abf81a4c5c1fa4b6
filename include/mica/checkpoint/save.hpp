// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "mica/checkpoint/manifest.hpp"
#include "mica/checkpoint/retention.hpp"
#include "mica/comm/host_comm.hpp"
#include "mica/fsdp/root.hpp"
#include "mica/optim/optimizer.hpp"

namespace mica::checkpoint {

/// Everything to save that the model and the mesh do not know themselves.
struct SaveState {
  const fsdp::Root* root = nullptr;
  const optim::Optimizer* optimizer = nullptr;  ///< null: parameters only
  std::string run_id;                           ///< make_run_id() of this launch; rank 0's is used
  std::int64_t step = 0;
  std::optional<CheckpointId> parent;  ///< what this launch resumed from, or saved last
  std::string began_from;              ///< Manifest::began_from
  std::int64_t tokens = 0;             ///< seen so far
  std::int64_t global_batch = 0;       ///< sequences of a step
  std::int64_t sequences = 0;          ///< seen so far
  std::string data;                    ///< data::TokenDataset::fingerprint()
  std::uint64_t seed = 0;
  int omp_threads = 1;
  std::optional<double> val_loss;                ///< if evaluated after this step
  std::string val_data;                          ///< Manifest::val_data
  bool diverged = false;                         ///< Manifest::diverged
  std::map<std::string, double> scalars;         ///< other state of the run, by name: "loss_scale"; finite
  std::map<std::string, std::string> model;      ///< "type" -> "gpt2", "layers" -> "12", ...
  std::string config;                            ///< the resolved config file
  std::shared_ptr<const HfTokenizer> tokenizer;  ///< rank 0's, as InitReport and LoadReport give it; null: none
};

struct SaveOptions {
  /// Which checkpoints up to this step to keep once this one is complete. Later ones are never deleted.
  Retention keep;
  /// Called on every rank that reaches one of kSavePoints; an exception from it fails the save.
  std::function<void(std::string_view point)> at_point;
};
/// In order. "metadata written" and "shard written": ranks that write a file; all others: rank 0. "earlier one moved": only if a
/// checkpoint of the same step is replaced.
inline constexpr std::string_view kSavePoints[] = {"folder made",   "metadata written",  "shard written", "before manifest",
                                                   "before rename", "earlier one moved", "after rename"};

/// Retries of a save that failed on all ranks alike with an IoError or a ConfigError: a full disk, a folder that is read-only or forbidden
/// for a while, a file system that was away.
struct Retries {
  std::vector<std::chrono::milliseconds> after;  ///< the pause before each retry; empty: no retries
  /// Polled in the pauses; if it returns true on any rank, there are no more retries. Empty: never.
  std::function<bool()> are_over;
  /// Called on every rank before each pause, with the error and the time of the next attempt. Empty: nobody is told.
  std::function<void(const std::string&)> tell;
};

struct SaveReport {
  std::string path;  ///< RUN/checkpoints/step-00000500
  std::int64_t step = 0;
  std::int64_t bytes = 0;          ///< of all files but the manifest
  std::int64_t shard_bytes = 0;    ///< of this rank's file, 0 if it writes none
  double write_ms = 0;             ///< this rank's file: create, write, fsync
  double total_ms = 0;             ///< the whole save
  std::vector<std::string> notes;  ///< harmless failures, e.g. an old checkpoint that could not be deleted
};

/// Writes RUN/checkpoints/step-N, complete or not at all. [Note: saving] Rank 0 makes step-N.RUNID.tmp. For each shard, one replica
/// (shard rank modulo replicas) writes and fsyncs a file. Tensors that are whole on every rank (ignored parameters and their state,
/// module buffers in their original dtype) are in shard rank 0's file. Meanwhile rank 0 writes model.h5. It gathers sizes and checksums,
/// writes the tokenizer's files and the manifest, fsyncs the folder, renames it, and fsyncs the parent. Only then old checkpoints are
/// deleted.
/// Between passes; waits for the compute stream.
/// If any rank fails in the last attempt, the .tmp is deleted, earlier checkpoints stay as they were, and every rank throws the lowest
/// failing rank's error: IoError (disk full: rank, path, bytes, free space), ConfigError (a folder that cannot be written).
/// @collective over `comm`: all ranks of the mesh.
SaveReport save(const std::string& run_folder, const SaveState& state, const HostComm& comm, const SaveOptions& options = {},
                const Retries& retries = {});

/// Whether this rank writes the file of its shard. Replicas take turns, so that different nodes write neighbouring shards.
[[nodiscard]] bool writes_shard_file(const MeshGeometry& geometry, int mesh_rank);
/// 8 hexadecimal digits, different in every launch.
[[nodiscard]] std::string make_run_id();

}  // namespace mica::checkpoint
