#include "mica/checkpoint/folder.hpp"

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "mica/checkpoint/manifest.hpp"
#include "mica/core/error.hpp"
#include "mica/io/atomic_file.hpp"

namespace mica::checkpoint {
namespace {

namespace fs = std::filesystem;

/// The step in "step-00000500"; nothing for any other name.
std::optional<std::int64_t> step_of(const std::string& name) {
  constexpr std::string_view kPrefix = "step-";
  if (!name.starts_with(kPrefix)) return std::nullopt;
  std::int64_t step = 0;
  const auto result = std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), step);
  if (result.ec != std::errc{} || step < 0 || step_folder_name(step) != name) return std::nullopt;
  return step;
}

/// "step-00000500.tmp" and "step-00000500.old.tmp"
bool is_leftover(const std::string& name) {
  const std::size_t dot = name.find('.');
  if (dot == std::string::npos || !step_of(name.substr(0, dot))) return false;
  return name.substr(dot) == ".tmp" || name.substr(dot) == ".old.tmp";
}

std::vector<std::string> subfolders(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  if (!fs::exists(folder, error)) return names;
  fs::directory_iterator it(folder, error);
  for (; !error && it != fs::directory_iterator(); it.increment(error)) {
    std::error_code ignored;
    if (it->is_directory(ignored)) names.push_back(it->path().filename().string());
  }
  require<IoError>(!error, "{}: cannot list the folder: {}", folder, error.message());
  return names;
}

void remove_all(const std::string& path) {
  std::error_code error;
  fs::remove_all(path, error);
  require<IoError>(!error, "{}: cannot be deleted: {}", path, error.message());
}

}  // namespace

std::string checkpoints_folder(const std::string& run_folder) { return run_folder + "/checkpoints"; }

std::string step_folder_name(std::int64_t step) { return fmt::format("step-{:08}", step); }

std::vector<Found> list_checkpoints(const std::string& folder) {
  std::vector<Found> found;
  for (const std::string& name : subfolders(folder)) {
    if (const auto step = step_of(name)) found.push_back({folder + "/" + name, *step});
  }
  std::ranges::sort(found, {}, &Found::step);
  return found;
}

std::optional<Found> newest_complete(const std::string& run_folder) {
  const std::vector<Found> all = list_checkpoints(checkpoints_folder(run_folder));
  if (all.empty()) return std::nullopt;
  return all.back();
}

std::string resolve_checkpoint(const std::string& path) {
  std::error_code error;
  require<ConfigError>(fs::is_directory(path, error), "{}: no such folder; expected a checkpoint (RUN/checkpoints/step-...)",
                       path);
  if (fs::exists(path + "/" + std::string(kManifestName), error)) return path;
  if (step_of(fs::path(path).lexically_normal().filename().string())) return path;  // without a manifest: damaged
  for (const std::string& folder : {checkpoints_folder(path), path}) {
    const std::vector<Found> all = list_checkpoints(folder);
    if (!all.empty()) return all.back().path;
  }
  throw ConfigError(fmt::format("{}: holds no checkpoint (no {} and no checkpoints/step-... inside)", path, kManifestName));
}

void remove_leftovers(const std::string& folder) {
  for (const std::string& name : subfolders(folder)) {
    if (is_leftover(name)) remove_all(folder + "/" + name);
  }
}

void remove_checkpoint(const std::string& path) {
  const std::string doomed = path + ".old.tmp";
  remove_all(doomed);
  std::error_code error;
  fs::rename(path, doomed, error);
  require<IoError>(!error, "{}: cannot be deleted: {}", path, error.message());
  io::fsync_directory(io::parent_directory(path));
  remove_all(doomed);
}

}  // namespace mica::checkpoint
