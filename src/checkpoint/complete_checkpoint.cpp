// SPDX-License-Identifier: Apache-2.0
#include "complete_checkpoint.hpp"

#include <filesystem>

#include "mica/checkpoint/folder.hpp"

#include "tokenizer_files.hpp"

namespace mica::checkpoint {
namespace {
namespace fs = std::filesystem;
}  // namespace

void check_file_sizes(const Manifest& manifest, const std::string& folder) {
  for (const FileEntry* file : manifest.all_files()) {
    std::error_code error;
    const std::uintmax_t bytes = fs::file_size(folder + "/" + file->name, error);
    require<IoError>(!error && bytes == static_cast<std::uintmax_t>(file->bytes),
                     "{}/{}: {}, expected {} bytes: something else changed the folder while the checkpoint was written; "
                     "does another job use this run folder?",
                     folder, file->name, error ? error.message() : fmt::format("has {} bytes", bytes), file->bytes);
  }
}

std::int64_t complete_checkpoint(const SaveJob& job, const std::vector<std::string>& files, const FileEntry& index,
                                 const std::optional<Retention>& retention, io::Publication& publication,
                                 const std::function<void(std::string_view)>& at_point, std::vector<std::string>& notes) {
  const auto at = [&](std::string_view point) {
    if (at_point) at_point(point);
  };
  Manifest header = job.header;
  header.retention = retention;
  header.index = index;
  if (job.tokenizer) header.tokenizer = write_tokenizer(publication.temporary(), *job.tokenizer);
  at("before manifest");
  const Manifest manifest = write_manifest(publication.temporary(), manifest_text(header, files));
  at("before rename");
  check_file_sizes(manifest, publication.temporary());

  const std::string& final = publication.path();
  const std::string replaced = final + std::string(kReplacedSuffix);
  std::error_code error;
  const bool replaces = fs::exists(final, error);
  if (replaces) {
    fs::remove_all(replaced, error);
    fs::rename(final, replaced, error);
    require<IoError>(!error, "{}: cannot rename the earlier checkpoint of this step: {}", final, error.message());
  }
  try {
    if (replaces) at("earlier one moved");
    publication.publish();
  } catch (...) {
    if (replaces && !fs::exists(final, error)) fs::rename(replaced, final, error);
    throw;
  }
  try {
    if (fs::exists(replaced, error)) remove_checkpoint(replaced);
  } catch (const IoError& cannot) {
    notes.emplace_back(cannot.what());
  }
  at("after rename");
  return manifest.total_bytes();
}

}  // namespace mica::checkpoint
