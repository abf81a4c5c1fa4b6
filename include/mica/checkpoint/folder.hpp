#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mica::checkpoint {

/// A checkpoint that is complete by its name: RUN/checkpoints/step-00000500.
struct CheckpointPath {
  std::string path;
  std::int64_t step = 0;
};

/// A checkpoint that makes way for another one of its step has this behind its name until the new one has taken its place.
inline constexpr std::string_view kReplacedSuffix = ".replaced";

/// "RUN/checkpoints"
[[nodiscard]] std::string checkpoints_folder(const std::string& run_folder);
/// "step-00000500"
[[nodiscard]] std::string step_folder_name(std::int64_t step);

/// Every checkpoint in a folder of checkpoints, by ascending step. Whatever ends in .tmp is none: it was being written
/// or deleted when its job died. "step-00000500.replaced" is one where no "step-00000500" is: its job died between the two
/// renames that replace a checkpoint. A folder that does not exist holds none. @throws IoError if it cannot be read.
[[nodiscard]] std::vector<CheckpointPath> list_checkpoints(const std::string& folder);
/// What resume=auto takes. @param run_folder  RUN.
[[nodiscard]] std::optional<CheckpointPath> newest_complete(const std::string& run_folder);

/// What people mean by a path: a checkpoint itself, or the newest one of a run's folder or of a folder of checkpoints.
/// @throws ConfigError if there is none.
[[nodiscard]] std::string resolve_checkpoint(const std::string& path);

/// Deletes what earlier jobs left half done: step-*.tmp, and step-*.replaced where the new one is there. Only for the job
/// that owns the run's folder.
void remove_leftovers(const std::string& folder);
/// Deletes a checkpoint: first renamed to .old.tmp, so that no half of it is ever seen.
void remove_checkpoint(const std::string& path);

/// RUN/checkpoints/set-aside-<N>, with the first N from 1 that is free; made now. For checkpoints that are no longer of
/// the run's line, since it went back to an earlier one. Nothing deletes them but people. @throws IoError
[[nodiscard]] std::string make_set_aside_folder(const std::string& run_folder);
/// Moves every checkpoint of RUN/checkpoints with a later step there, newest first: dying on the way leaves a line. @throws IoError
void set_aside_after(const std::string& run_folder, std::int64_t step, const std::string& set_aside_folder);
/// RUN/checkpoints/set-aside-<N>, ascending.
[[nodiscard]] std::vector<std::string> list_set_aside(const std::string& folder);

}  // namespace mica::checkpoint
