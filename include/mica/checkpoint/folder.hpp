// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mica::checkpoint {

/// A complete checkpoint, by its name: RUN/checkpoints/step-00000500.
struct CheckpointPath {
  std::string path;
  std::int64_t step = 0;
};

/// Suffix of a checkpoint that is being replaced by a new one of the same step, until that has its final name.
inline constexpr std::string_view kReplacedSuffix = ".replaced";

/// "RUN/checkpoints"
[[nodiscard]] std::string checkpoints_folder(const std::string& run_folder);
/// "step-00000500"
[[nodiscard]] std::string step_folder_name(std::int64_t step);

/// Every checkpoint in a folder of checkpoints, by ascending step. Folders that end in .tmp are not checkpoints: their job
/// died while it wrote or deleted them. "step-00000500.replaced" counts if there is no "step-00000500": its job died between
/// the two renames that replace a checkpoint. A missing folder holds none. @throws ConfigError if it cannot be read.
[[nodiscard]] std::vector<CheckpointPath> list_checkpoints(const std::string& folder);
/// The checkpoint for resume=auto. @param run_folder  RUN.
[[nodiscard]] std::optional<CheckpointPath> newest_complete(const std::string& run_folder);

/// Resolves a user's path: a checkpoint, or the newest one of a run's folder or of a folder of checkpoints.
/// @throws ConfigError if there is none, or for step-*.tmp, even if it looks complete: the next save deletes it.
[[nodiscard]] std::string resolve_checkpoint(const std::string& path);

/// Deletes what earlier jobs left unfinished: step-*.tmp, and step-*.replaced if the new one exists. Only for the job that owns
/// the run's folder. @returns what could not be deleted and why, one line each. @throws ConfigError if the folder cannot be read.
[[nodiscard]] std::vector<std::string> remove_leftovers(const std::string& folder);
/// Deletes a checkpoint. It is first renamed to .old.tmp, so that no half-deleted one is visible. @throws IoError
void remove_checkpoint(const std::string& path);

/// Creates RUN/checkpoints/set-aside-<N>, N being the first free number from 1, for checkpoints that are no longer part of the run
/// because it went back to an earlier one. Mica never deletes them. @throws IoError
[[nodiscard]] std::string make_set_aside_folder(const std::string& run_folder);
/// Moves every checkpoint of RUN/checkpoints with a later step into that folder, newest first, so that a crash in between leaves a
/// consistent history. @throws IoError
void set_aside_after(const std::string& run_folder, std::int64_t step, const std::string& set_aside_folder);
/// RUN/checkpoints/set-aside-<N>, ascending.
[[nodiscard]] std::vector<std::string> list_set_aside(const std::string& folder);

}  // namespace mica::checkpoint
