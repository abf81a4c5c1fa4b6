// SPDX-License-Identifier: Apache-2.0
#include "mica/checkpoint/folder.hpp"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>
#include <ranges>

#include "mica/checkpoint/manifest.hpp"
#include "mica/core/error.hpp"
#include "mica/io/atomic_file.hpp"
#include "mica/io/path_check.hpp"

namespace mica::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kStep = "step-", kSetAside = "set-aside-";

/// N in "<prefix>N"; nullopt for any other name.
std::optional<std::int64_t> number_after(std::string_view prefix, const std::string& name) {
  if (!name.starts_with(prefix)) return std::nullopt;
  std::int64_t number = 0;
  const auto result = std::from_chars(name.data() + prefix.size(), name.data() + name.size(), number);
  if (result.ec != std::errc{} || result.ptr != name.data() + name.size() || number < 0) return std::nullopt;
  return number;
}

/// The step in "step-00000500"; nullopt for any other name.
std::optional<std::int64_t> step_of(const std::string& name) {
  const std::optional<std::int64_t> step = number_after(kStep, name);
  return step && step_folder_name(*step) == name ? step : std::nullopt;
}

/// The step in "step-00000500.replaced"; nullopt for any other name.
std::optional<std::int64_t> replaced_step_of(const std::string& name) {
  if (!name.ends_with(kReplacedSuffix)) return std::nullopt;
  return step_of(name.substr(0, name.size() - kReplacedSuffix.size()));
}

/// "step-00000500.1a2b3c4d.tmp", "step-00000500.old.tmp"
bool is_leftover(const std::string& name) { return name.ends_with(".tmp") && step_of(name.substr(0, name.find('.'))).has_value(); }

/// Of those that begin with kStep or kSetAside.
std::vector<std::string> subfolders(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  // Only what is known to be missing holds no checkpoints: neither a link to nowhere, nor a file system that does not answer.
  if (fs::symlink_status(folder, error).type() == fs::file_type::not_found) return names;
  fs::directory_iterator it(folder, error);
  for (; !error && it != fs::directory_iterator(); it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (!name.starts_with(kStep) && !name.starts_with(kSetAside)) continue;
    std::error_code of_entry;
    if (it->is_directory(of_entry)) names.push_back(name);
    if (of_entry && of_entry != std::errc::no_such_file_or_directory) {
      error = of_entry;
      break;
    }
  }
  require<ConfigError>(!io::is_mistake(error), "{}: cannot list the folder: {}", folder, error.message());
  require<IoError>(!error, "{}: cannot list the folder: {}", folder, error.message());
  return names;
}

void remove_all(const std::string& path) {
  std::error_code error;
  fs::remove_all(path, error);
  require<IoError>(!error, "{}: cannot be deleted: {}", path, error.message());
}

/// "step-00000500.old.tmp", or "step-00000500.2.old.tmp" if something that cannot be deleted has that name.
std::string doomed_name(const std::string& path) {
  std::error_code ignored;
  std::string name = path + ".old.tmp";
  for (int number = 2; fs::exists(fs::symlink_status(name, ignored)); ++number) name = fmt::format("{}.{}.old.tmp", path, number);
  return name;
}

}  // namespace

std::string checkpoints_folder(const std::string& run_folder) { return run_folder + "/checkpoints"; }

std::string step_folder_name(std::int64_t step) { return fmt::format("step-{:08}", step); }

std::vector<CheckpointPath> list_checkpoints(const std::string& folder) {
  std::vector<CheckpointPath> found;
  const std::vector<std::string> names = subfolders(folder);
  for (const std::string& name : names) {
    if (const auto step = step_of(name)) found.push_back({folder + "/" + name, *step});
  }
  for (const std::string& name : names) {
    const auto step = replaced_step_of(name);
    if (step && std::ranges::find(found, *step, &CheckpointPath::step) == found.end()) found.push_back({folder + "/" + name, *step});
  }
  std::ranges::sort(found, {}, &CheckpointPath::step);
  return found;
}

std::optional<CheckpointPath> newest_complete(const std::string& run_folder) {
  const std::vector<CheckpointPath> all = list_checkpoints(checkpoints_folder(run_folder));
  if (all.empty()) return std::nullopt;
  return all.back();
}

std::string resolve_checkpoint(const std::string& path) {
  const std::string why = io::why_no_folder(path);
  require<ConfigError>(why.empty(), "{}: {}; expected a checkpoint (RUN/checkpoints/step-...) or a run's folder", path, why);
  std::error_code error;
  require<ConfigError>(!is_leftover(fs::canonical(path, error).filename().string()),
                       "{}: not a complete checkpoint: its job died while writing or deleting it, and the next save deletes this folder; "
                       "name another checkpoint, or rename the folder to step-... and check it with mica-inspect verify",
                       path);
  if (fs::exists(path + "/" + std::string(kManifestName), error)) return path;
  if (step_of(fs::path(path).lexically_normal().filename().string())) return path;  // without a manifest: damaged
  for (const std::string& folder : {checkpoints_folder(path), path}) {
    const std::vector<CheckpointPath> all = list_checkpoints(folder);
    if (!all.empty()) return all.back().path;
  }
  throw ConfigError(fmt::format("{}: holds no checkpoint (no {} and no checkpoints/step-... inside)", path, kManifestName));
}

std::vector<std::string> remove_leftovers(const std::string& folder) {
  std::vector<std::string> failures;
  for (const std::string& name : subfolders(folder)) {
    const auto replaced = replaced_step_of(name);
    try {
      std::error_code error;
      if (is_leftover(name)) remove_all(folder + "/" + name);
      if (replaced && fs::exists(folder + "/" + step_folder_name(*replaced), error)) remove_checkpoint(folder + "/" + name);
    } catch (const IoError& error) {
      failures.emplace_back(error.what());
    }
  }
  return failures;
}

void remove_checkpoint(const std::string& path) {
  const std::string doomed = doomed_name(path);
  std::error_code error;
  fs::rename(path, doomed, error);
  require<IoError>(!error, "{}: cannot be deleted: {}", path, error.message());
  io::fsync_directory(io::parent_directory(path));
  remove_all(doomed);
}

std::vector<std::string> list_set_aside(const std::string& folder) {
  std::map<std::int64_t, std::string> by_number;
  for (const std::string& name : subfolders(folder)) {
    if (const auto number = number_after(kSetAside, name)) by_number[*number] = folder + "/" + name;
  }
  std::vector<std::string> paths;
  for (const auto& [number, path] : by_number) paths.push_back(path);
  return paths;
}

std::string make_set_aside_folder(const std::string& run_folder) {
  const std::string parent = checkpoints_folder(run_folder);
  std::error_code error;
  for (int number = 1;; ++number) {
    const std::string path = fmt::format("{}/{}{}", parent, kSetAside, number);
    if (fs::create_directories(path, error)) return path;
    require<IoError>(!error, "{}: cannot be created: {}", path, error.message());
  }
}

void set_aside_after(const std::string& run_folder, std::int64_t step, const std::string& set_aside_folder) {
  (void)remove_leftovers(checkpoints_folder(run_folder));  // a step-N.replaced would count as step N once that has been moved
  std::vector<CheckpointPath> later = list_checkpoints(checkpoints_folder(run_folder));
  std::erase_if(later, [&](const CheckpointPath& found) { return found.step <= step; });
  for (const CheckpointPath& each : std::ranges::reverse_view(later)) {
    const std::string to = set_aside_folder + "/" + step_folder_name(each.step);
    std::error_code error;
    fs::rename(each.path, to, error);
    require<IoError>(!error, "{}: cannot be moved to {}: {}", each.path, to, error.message());
  }
  if (const auto left = newest_complete(run_folder); left && left->step > step) {
    throw IoError(fmt::format("{}: cannot be deleted, and would count as step {}: delete it by hand", left->path, left->step));
  }
  io::fsync_directory(set_aside_folder);
  io::fsync_directory(checkpoints_folder(run_folder));
}

}  // namespace mica::checkpoint
