// SPDX-License-Identifier: Apache-2.0
#include "mica/checkpoint/manifest.hpp"

#include <algorithm>
#include <filesystem>

#include "mica/io/atomic_file.hpp"

#include "reading.hpp"

namespace mica::checkpoint {
namespace {

std::string manifest_path(const std::string& checkpoint_folder) { return checkpoint_folder + "/" + std::string(kManifestName); }

/// The text of a folder's manifest.
std::string manifest_of(const std::string& checkpoint_folder) {
  namespace fs = std::filesystem;
  const std::string path = manifest_path(checkpoint_folder);
  std::error_code error;
  const fs::file_type folder = fs::status(checkpoint_folder, error).type();
  require<IoError>(folder != fs::file_type::none || io::is_mistake(error), "{}: cannot be read: {}", checkpoint_folder, error.message());
  require<CheckpointError>(folder == fs::file_type::directory,
                           "{}: there is no checkpoint here (expected a folder such as RUN/checkpoints/step-00000500)", checkpoint_folder);
  require<DamagedCheckpointError>(fs::symlink_status(path, error).type() != fs::file_type::not_found,
                                  "{}: the manifest is missing, so this is no complete checkpoint", path);
  return reading([&] { return io::read_file(path); });
}

}  // namespace

std::int64_t Manifest::total_bytes() const {
  std::int64_t bytes = 0;
  for (const FileEntry* file : all_files()) bytes += file->bytes;
  return bytes;
}

std::vector<const FileEntry*> Manifest::all_files() const {
  std::vector<const FileEntry*> all;
  for (const FileEntry& file : files) all.push_back(&file);
  all.push_back(&index);
  for (const FileEntry& file : tokenizer.files) all.push_back(&file);
  return all;
}

DType Manifest::state_dtype(std::string_view kind) const {
  const auto found = static_cast<std::size_t>(std::ranges::find(state_kinds, kind) - state_kinds.begin());
  return found < state_dtypes.size() ? state_dtypes[found] : DType::f32;
}

std::int64_t Manifest::num_parameters() const {
  std::int64_t numel = 0;
  for (const UnitEntry& unit : units) {
    if (unit.role == UnitRole::buffer) continue;
    for (const fsdp::ParameterSpec& parameter : unit.parameters) numel += parameter.shape.numel();
  }
  return numel;
}

Manifest write_manifest(const std::string& checkpoint_folder, const std::string& text) {
  const std::string path = manifest_path(checkpoint_folder);
  Manifest manifest = parse_manifest(text, path);  // never publish a manifest that loading would refuse
  io::write_file_atomically(path, text);
  return manifest;
}

Manifest read_manifest(const std::string& checkpoint_folder) {
  return parse_manifest(manifest_of(checkpoint_folder), manifest_path(checkpoint_folder));
}

Manifest read_manifest_header(const std::string& checkpoint_folder) {
  return parse_manifest_header(manifest_of(checkpoint_folder), manifest_path(checkpoint_folder));
}

}  // namespace mica::checkpoint
