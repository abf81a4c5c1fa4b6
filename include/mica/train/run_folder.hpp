#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "mica/checkpoint/manifest.hpp"
#include "mica/comm/run_app.hpp"
#include "mica/core/log.hpp"
#include "mica/train/config.hpp"
#include "mica/train/run_lock.hpp"

namespace mica::train {

/// What a launch starts from.
struct StartPoint {
  std::string checkpoint;                        ///< its folder; empty: initial parameters
  std::optional<checkpoint::Manifest> manifest;  ///< of that checkpoint
  std::string began_from;                        ///< Manifest::began_from of the checkpoints that follow
  /// The run folder's checkpoints and rows up to this step are of the line that goes on; -1: none, it begins elsewhere.
  std::int64_t last_of_line = -1;
  int num_later = 0;                             ///< checkpoints there that are not, and will be set aside
};

/// Which checkpoint checkpoint.resume means, looked up by rank 0 alone and told to all: other ranks may see an older state of
/// the folder. [Note: going on] `auto` is the newest of the run's folder, which holds one line (checkpoint/lineage.hpp). A path
/// goes back to that checkpoint, or begins with another run's, once: the checkpoints that follow remember the path
/// (Manifest::began_from), and while the newest one does, the same command goes on from there.
/// @throws ConfigError, CheckpointError on all ranks: there is none, resume = none with checkpoints there, a rank that
///         cannot see it, a damaged manifest.
/// @collective
[[nodiscard]] StartPoint find_start(const HostComm& comm, const Config& config);

/// The folder of a run while its job has it. Rank 0 makes it, locks it and writes log.txt; the others only know of it.
class RunFolder {
 public:
  /// @throws ConfigError, IoError on all ranks: cannot be made or written, another job has it.  @collective
  RunFolder(App& app, const Config& config, const Logger& logger);

  /// That of the constructor, with log.txt behind it on rank 0.
  [[nodiscard]] const Logger& logger() const { return logger_; }
  /// @throws Error on rank 0 when another job has taken the folder over.
  void check_owner() const;
  [[nodiscard]] bool is_lost() const { return lock_ && lock_->is_lost(); }

  /// Sets aside what is no longer of the run's line: later checkpoints, and their rows of metrics.jsonl; drops rows that will be
  /// done again. Rank 0 only.  @returns the folder of what was set aside; empty if nothing was.  @throws IoError, ConfigError
  [[nodiscard]] std::string keep_line_of(const StartPoint& start) const;

 private:
  std::string path_;
  std::optional<RunLock> lock_;  // rank 0's
  Logger logger_;
};

}  // namespace mica::train
