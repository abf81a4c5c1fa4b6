// SPDX-License-Identifier: Apache-2.0
#include "mica/train/run_folder.hpp"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <ranges>
#include <vector>

#include <nlohmann/json.hpp>
#include <unistd.h>

#include "mica/checkpoint/folder.hpp"
#include "mica/checkpoint/load.hpp"
#include "mica/core/error.hpp"
#include "mica/io/atomic_file.hpp"
#include "mica/io/path_check.hpp"
#include "mica/io/raw_file.hpp"
#include "mica/launch/checks.hpp"
#include "mica/train/metrics.hpp"

namespace mica::train {
namespace {

namespace fs = std::filesystem;

/// For the run's small files: lock, log, config. Room for a checkpoint is checked once its size is known.
constexpr std::int64_t kLeastDiskBytes = 64 << 10;

constexpr const char* kCannotCreate = "cannot create the run folder {}: {}; choose another one with --run.dir=FOLDER";

bool is_path(const std::string& resume) { return resume != "auto" && resume != "none"; }

/// One spelling of a path, even if it no longer exists.
std::string canonical(const std::string& path) {
  std::error_code error;
  return io::without_slash(fs::weakly_canonical(path, error).lexically_normal().string());
}

/// The path, or the first folder above it that exists.
std::string nearest_that_exists(const std::string& path) {
  std::error_code error;
  if (fs::exists(path, error)) return path;
  fs::path at = fs::absolute(path);
  while (!fs::exists(at, error) && at.has_relative_path()) at = at.parent_path();
  return at;
}

/// Why no files can be made in a folder: the system's words. Empty: they can.
std::string why_not_writable(const std::string& folder) {
  std::error_code error;
  if (!fs::is_directory(folder, error)) return errno_text(ENOTDIR);
  return ::access(folder.c_str(), W_OK | X_OK) == 0 ? "" : errno_text(errno);
}

/// A path as manifests hold it, which are UTF-8.
std::string in_utf8(const std::string& path) {
  using Json = nlohmann::json;
  return Json::parse(Json(path).dump(-1, ' ', false, Json::error_handler_t::replace)).get<std::string>();
}

/// How checkpoints record the path in checkpoint.resume: relative to the run's folder if it is inside, so that the folder may be moved.
std::string recorded(const Config& config) {
  const std::string path = canonical(config.checkpoint.resume);
  const std::string run = canonical(config.run_folder()) + "/";
  return in_utf8(path.starts_with(run) ? path.substr(run.size()) : path);
}

/// The newest undamaged checkpoint that a run can resume, or that is the last of the run, if it and all newer ones descend from this
/// checkpoint.resume.
std::optional<std::string> newest_of_line(const Config& config, StartPoint& start) {
  const std::vector<checkpoint::CheckpointPath> all = checkpoint::list_checkpoints(checkpoint::checkpoints_folder(config.run_folder()));
  for (const checkpoint::CheckpointPath& each : std::ranges::reverse_view(all)) {
    try {
      const checkpoint::Manifest header = checkpoint::read_manifest_header(each.path);
      const std::string& began_from = header.began_from;
      const bool is_of_line = began_from == recorded(config) || began_from == in_utf8(canonical(config.checkpoint.resume));  // as in 0.1
      if (!is_of_line) break;
      if (!header.optimizer.empty() || each.step >= config.train.steps) return each.path;
      start.passed_over.push_back(each.step);
    } catch (const CheckpointError& damage) {
      start.damaged.emplace_back(damage.what());
    }
  }
  return std::nullopt;
}

/// The newest checkpoint of a folder that a run can resume. The newest of all, if it is the last of the run, or if there is none to resume,
/// which Trainer refuses. A damaged one ends the search: what going back past it costs is for the user to decide.
/// @returns empty: the folder holds none
std::string newest_to_resume(const std::string& folder, std::int64_t last_step, StartPoint& start) {
  const std::vector<checkpoint::CheckpointPath> all = checkpoint::list_checkpoints(folder);
  if (all.empty()) return "";
  if (all.back().step >= last_step) return all.back().path;
  for (const checkpoint::CheckpointPath& each : std::ranges::reverse_view(all)) {
    try {
      const checkpoint::Manifest header = checkpoint::read_manifest_header(each.path);
      if (!header.optimizer.empty()) return each.path;
      if (start.passed_over.empty()) start.began_from = header.began_from;
      start.passed_over.push_back(each.step);
    } catch (const CheckpointError&) {
      return each.path;
    }
  }
  start.passed_over.clear();
  return all.back().path;
}

int num_later(const std::string& run_folder, std::int64_t step) {
  const auto all = checkpoint::list_checkpoints(checkpoint::checkpoints_folder(run_folder));
  return static_cast<int>(std::ranges::count_if(all, [&](const checkpoint::CheckpointPath& each) { return each.step > step; }));
}

/// Sets start.passed_over and, for `auto`, began_from where some were passed over.
/// @returns the checkpoint's folder; empty: there is none yet.
std::string choose_checkpoint(const Config& config, StartPoint& start) {
  const std::string& wanted = config.checkpoint.resume;
  if (is_path(wanted)) {
    if (const std::optional<std::string> of_line = newest_of_line(config, start)) return *of_line;
    const std::string found = checkpoint::resolve_checkpoint(wanted);
    if (found == wanted) return found;
    start.passed_over.clear();  // of this run's folder
    return newest_to_resume(io::parent_directory(found), config.train.steps, start);
  }
  const auto newest = checkpoint::newest_complete(config.run_folder());
  require<ConfigError>(wanted != "none" || !newest,
                       "run folder {} holds {} already and checkpoint.resume = none: choose another run.dir, delete it, "
                       "or resume it with --checkpoint.resume=auto",
                       config.run_folder(), newest ? newest->path : "");
  return newest ? newest_to_resume(io::parent_directory(newest->path), config.train.steps, start) : "";
}

/// Fails on a rank that does not see what rank 0 sees.
void check_visible(const std::string& checkpoint_folder) {
  const std::string manifest = checkpoint_folder + "/" + std::string(checkpoint::kManifestName);
  std::error_code error;
  const bool exists = fs::exists(manifest, error);
  const std::string reason = error ? error.message() : "no such file";
  require<CheckpointError>(exists,
                           "{} cannot be read ({}; working directory {}), but rank 0 resumes from it: the run's folder must be on a "
                           "file system that all nodes share",
                           manifest, reason, fs::current_path(error).string());
}

}  // namespace

StartPoint find_start(const HostComm& comm, const Config& config) {
  StartPoint start;
  start.checkpoint = comm.from_first_rank([&] { return choose_checkpoint(config, start); });
  if (start.checkpoint.empty()) return start;
  comm.agree([&] { start.manifest = checkpoint::open_checkpoint(start.checkpoint, comm); });
  comm.agree([&] {
    check_visible(start.checkpoint);
    if (comm.rank() != 0) return;
    if (is_path(config.checkpoint.resume)) {
      start.began_from = recorded(config);
    } else if (start.passed_over.empty()) {
      start.began_from = start.manifest->began_from;
    }
    const std::string checkpoints = checkpoint::checkpoints_folder(config.run_folder());
    if (io::lead_to_one_place(io::parent_directory(start.checkpoint), checkpoints)) start.last_of_line = start.manifest->step;
    start.num_later = num_later(config.run_folder(), start.last_of_line);
  });
  start.began_from = comm.broadcast_string(start.began_from, 0);  // any rank may write an emergency checkpoint
  return start;
}

std::string disk_of_checkpoints(const std::string& run_folder) {
  const std::string checkpoints = checkpoint::checkpoints_folder(run_folder);
  return io::why_no_folder(checkpoints).empty() ? checkpoints : run_folder;
}

void check_disk_space(const std::string& folder, std::int64_t needed_bytes, const std::string& what) {
  const std::optional<std::int64_t> free_bytes = io::free_bytes(nearest_that_exists(folder));
  require<ConfigError>(!free_bytes || *free_bytes >= needed_bytes,
                       "the disk of run folder {} has {} bytes free, but {} takes {}: free space there, or choose another folder with "
                       "--run.dir=FOLDER",
                       folder, free_bytes.value_or(0), what, needed_bytes);
}

void check_run_folder(const std::string& folder) {
  std::error_code error;
  const std::string nearest = nearest_that_exists(folder);
  if (nearest != folder) {
    require<ConfigError>(!fs::is_symlink(folder, error), kCannotCreate, folder, "it is a link to a folder that does not exist");
    const std::string why_not = why_not_writable(nearest);
    require<ConfigError>(why_not.empty(), kCannotCreate, folder, fmt::format("{}: {}", nearest, why_not));
  }
  for (const std::string& each : {folder, checkpoint::checkpoints_folder(folder)}) {
    const std::string why_not = fs::exists(each, error) ? why_not_writable(each) : "";
    require<ConfigError>(why_not.empty(), "cannot write into the run folder {}: {}; choose another one with --run.dir=FOLDER", each,
                         why_not);
  }
  check_disk_space(folder, kLeastDiskBytes, "a run");
}

RunFolder::RunFolder(App& app, const Config& config, const Logger& logger) : path_(config.run_folder()), logger_(logger) {
  owner_ = app.comm.from_first_rank([&] {
    check_run_folder(path_);
    std::error_code error;
    fs::create_directories(path_, error);
    require<ConfigError>(!error, kCannotCreate, path_, error.message());
    lock_ = RunLock::acquire(path_, {.take_over = config.run.take_over, .tell = [&](const std::string& text) { logger.warn("{}", text); }});
    logger_ = logger.with_file(path_ + "/log.txt");
    return RunLock::owner_in(path_);
  });
  app.log_file = path_ + "/log.txt";
  app.watchdog.set_folder(path_, app.log_file);
}

launch::Check RunFolder::sharing_check() const {
  return launch::shared_folder(path_, [path = path_, owner = owner_] { return RunLock::owner_in(path) == owner; });
}

void RunFolder::check_owner() const {
  if (lock_) lock_->check();
}

std::string RunFolder::set_aside_after(std::int64_t last_step) const {
  const std::string metrics = path_ + "/metrics.jsonl";
  std::string folder;
  if (num_later(path_, last_step) > 0) {
    folder = checkpoint::make_set_aside_folder(path_);
    copy_later_metrics(metrics, last_step, folder + "/metrics.jsonl");
    checkpoint::set_aside_after(path_, last_step, folder);
  }
  drop_later_metrics(metrics, last_step);
  return folder;
}

}  // namespace mica::train
