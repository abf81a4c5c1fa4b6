#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace mica::checkpoint {

/// A checkpoint that is complete by its name: RUN/checkpoints/step-00000500.
struct Found {
  std::string path;
  std::int64_t step = 0;
};

/// "RUN/checkpoints"
[[nodiscard]] std::string checkpoints_folder(const std::string& run_folder);
/// "step-00000500"
[[nodiscard]] std::string step_folder_name(std::int64_t step);

/// Every checkpoint in a folder of checkpoints, by ascending step. Whatever ends in .tmp is none: it was being written
/// or deleted when its job died. A folder that does not exist holds none. @throws IoError if it cannot be read.
[[nodiscard]] std::vector<Found> list_checkpoints(const std::string& folder);
/// What resume=auto takes. @param run_folder  RUN.
[[nodiscard]] std::optional<Found> newest_complete(const std::string& run_folder);

/// What people mean by a path: a checkpoint itself, or the newest one of a run's folder or of a folder of checkpoints.
/// @throws ConfigError if there is none.
[[nodiscard]] std::string resolve_checkpoint(const std::string& path);

/// Deletes what earlier jobs left half done: step-*.tmp. Only for the job that owns the run's folder.
void remove_leftovers(const std::string& folder);
/// Deletes a checkpoint: first renamed to .old.tmp, so that no half of it is ever seen.
void remove_checkpoint(const std::string& path);

}  // namespace mica::checkpoint
