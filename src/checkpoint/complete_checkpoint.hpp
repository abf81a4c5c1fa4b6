// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "mica/checkpoint/retention.hpp"
#include "mica/io/atomic_file.hpp"

#include "save_job.hpp"

namespace mica::checkpoint {

/// Completes a checkpoint whose shard files and model.h5 are written: adds the tokenizer's files and the manifest to the publication's
/// temporary folder, and publishes it. A checkpoint of the same step is renamed first (kReplacedSuffix); list_checkpoints() finds it
/// under that name until the new one has its own.
/// @param files  file_entry_text() of each, in shard_rank order  @param index  of model.h5  @param retention  Manifest::retention
/// @param at_point  SaveOptions::at_point  @param notes  harmless failures are appended
/// @returns the bytes of all files. @throws IoError, CheckpointError
std::int64_t complete_checkpoint(const SaveJob& job, const std::vector<std::string>& files, const FileEntry& index,
                                 const std::optional<Retention>& retention, io::Publication& publication,
                                 const std::function<void(std::string_view)>& at_point, std::vector<std::string>& notes);

/// Finds files that someone deleted or truncated. @throws IoError, in the words of a checkpoint that is being written
void check_file_sizes(const Manifest& manifest, const std::string& folder);

}  // namespace mica::checkpoint
