// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "mica/checkpoint/manifest.hpp"
#include "mica/comm/run_app.hpp"
#include "mica/core/log.hpp"
#include "mica/launch/launch_checks.hpp"
#include "mica/train/config.hpp"
#include "mica/train/run_lock.hpp"

namespace mica::train {

/// Where a launch starts from.
struct StartPoint {
  std::string checkpoint;                        ///< its folder; empty: initial parameters
  std::optional<checkpoint::Manifest> manifest;  ///< of that checkpoint
  std::string began_from;                        ///< Manifest::began_from of the checkpoints that follow
  /// The run folder's checkpoints and metrics rows up to this step are kept; -1: none, the run starts elsewhere.
  std::int64_t last_of_line = -1;
  int num_later = 0;  ///< later checkpoints in the folder, which will be set aside
  /// Steps of newer checkpoints without optimizer state, which cannot be resumed; newest first. Rank 0's.
  std::vector<std::int64_t> passed_over;
  /// What is wrong with newer checkpoints of the run's folder that a path in checkpoint.resume passed over. Rank 0's.
  std::vector<std::string> damaged;
};

/// Finds the checkpoint that checkpoint.resume names. Only rank 0 looks and broadcasts, since the others may see an older state of the
/// folder. [Note: going on] `auto` is the newest checkpoint of the run's folder, which holds one line of checkpoints
/// (checkpoint/lineage.hpp). A path goes back to that checkpoint, or starts from another run's checkpoint, but only once: later checkpoints
/// record the path (Manifest::began_from). If the newest checkpoint records it, the same command resumes from the newest.
/// The newest is one with optimizer state: a run that goes on from it sets newer ones of the model only aside, and makes their steps again.
/// But if the newest of all is of train.steps or later, the run is finished; and if none has optimizer state, it is that one, which is
/// refused.
/// @throws ConfigError, CheckpointError on all ranks: no such checkpoint, resume = none although there are checkpoints, a rank
///         that cannot see it, a damaged manifest.
/// @collective
[[nodiscard]] StartPoint find_start(const HostComm& comm, const Config& config);

/// A folder on the disk where the run's checkpoints will be: RUN/checkpoints, which may be a link to another disk, or RUN where that is not
/// made yet.
[[nodiscard]] std::string disk_of_checkpoints(const std::string& run_folder);

/// Local, for rank 0. @param what  "a checkpoint of this run"  @throws ConfigError if the file system of `folder`, which need not exist
/// yet, has fewer than `needed_bytes` free (io::free_bytes()). One that does not report its size passes.
void check_disk_space(const std::string& folder, std::int64_t needed_bytes, const std::string& what);

/// Local, for rank 0. What the constructor of RunFolder refuses, without making the folder. @throws ConfigError
void check_run_folder(const std::string& folder);

/// A run's folder while this job owns it. Rank 0 makes it, locks it and writes log.txt.
class RunFolder {
 public:
  /// @throws ConfigError, IoError on all ranks: it cannot be made or written, or another job owns it. @collective
  RunFolder(App& app, const Config& config, const Logger& logger);

  /// The constructor's logger, which also writes log.txt on rank 0.
  [[nodiscard]] const Logger& logger() const { return logger_; }
  /// Whether every rank sees the folder as rank 0 does, for LaunchChecks::run().
  [[nodiscard]] launch::Check sharing_check() const;
  /// @throws Error on rank 0 if another job has taken the folder over.
  void check_owner() const;
  /// This job's name, the same on every rank (RunLock::owner_in()).
  [[nodiscard]] const std::string& owner() const { return owner_; }
  [[nodiscard]] bool is_lost() const { return lock_ && lock_->is_lost(); }

  /// Sets aside what is no longer part of the run: checkpoints after `last_step` and their rows of metrics.jsonl. Drops rows of steps that
  /// will be repeated. Rank 0 only. @returns the folder of what was set aside; empty if nothing was.  @throws IoError, ConfigError
  [[nodiscard]] std::string set_aside_after(std::int64_t last_step) const;

 private:
  std::string path_;
  std::optional<RunLock> lock_;  // rank 0's
  std::string owner_;
  Logger logger_;
};

}  // namespace mica::train
