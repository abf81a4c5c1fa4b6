#include "mica/train/run_folder.hpp"

#include <filesystem>

#include <unistd.h>

#include "mica/checkpoint/folder.hpp"
#include "mica/checkpoint/load.hpp"
#include "mica/core/error.hpp"
#include "mica/io/atomic_file.hpp"
#include "mica/train/metrics.hpp"

namespace mica::train {
namespace {

namespace fs = std::filesystem;

/// Whether a run with this checkpoint.resume saved the checkpoint. A damaged one is nobody's.
bool was_begun_by(const std::string& resume, const std::string& checkpoint_folder) {
  try {
    const checkpoint::Manifest manifest = checkpoint::read_manifest(checkpoint_folder);
    return parse_config({checkpoint_folder, manifest.config}, {}).checkpoint.resume == resume;
  } catch (const CheckpointError&) {
    return false;
  }
}

StartPoint choose(const Config& config) {
  const std::string& wanted = config.checkpoint.resume;
  const auto newest = checkpoint::newest_complete(config.run_folder());
  require<ConfigError>(wanted != "none" || !newest,
                       "run folder {} holds {} already and checkpoint.resume = none: choose another run.dir, delete it, "
                       "or go on with --checkpoint.resume=auto",
                       config.run_folder(), newest ? newest->path : "");
  if (wanted == "none") return {};
  if (wanted == "auto") return {newest ? newest->path : "", {}, ""};
  std::string path = checkpoint::resolve_checkpoint(wanted);
  std::error_code error;
  if (newest && !fs::equivalent(newest->path, path, error) && was_begun_by(wanted, newest->path)) {
    return {newest->path, {},
            fmt::format("goes on from {}, the newest checkpoint of the line that began with checkpoint.resume = {}; to begin "
                        "there again, use another run.dir",
                        newest->path, wanted)};
  }
  return {std::move(path), {}, ""};
}

/// Of a rank that does not see what rank 0 sees.
void check_visible(const std::string& checkpoint_folder) {
  const std::string manifest = checkpoint_folder + "/" + std::string(checkpoint::kManifestName);
  std::error_code error;
  require<CheckpointError>(fs::exists(manifest, error),
                           "{} cannot be read ({}; working directory {}), but rank 0 goes on from it: the run's folder must be on a "
                           "file system that all nodes share",
                           manifest, error ? error.message() : "no such file", fs::current_path(error).string());
}

}  // namespace

StartPoint find_start(const mpi::Communicator& world, const Config& config) {
  StartPoint start;
  together(world, [&] {
    if (world.rank() == 0) start = choose(config);
  });
  start.checkpoint = world.broadcast_string(start.checkpoint, 0);
  if (start.checkpoint.empty()) return start;
  const auto comm = checkpoint::make_mpi_comm(world);
  together(world, [&] { start.manifest = checkpoint::open_checkpoint(start.checkpoint, *comm); });
  together(world, [&] { check_visible(start.checkpoint); });
  return start;
}

RunFolder::RunFolder(App& app, const Config& config, const Logger& logger) : path_(config.run_folder()), logger_(logger) {
  together(app.world, [&] {
    if (app.world.rank() != 0) return;
    std::error_code error;
    fs::create_directories(path_, error);
    require<ConfigError>(!error, "cannot create the run folder {}: {}; choose another one with --run.dir=FOLDER", path_,
                         error.message());
    const int access_error = access(path_.c_str(), W_OK | X_OK) == 0 ? 0 : errno;
    require<ConfigError>(access_error == 0,
                         "cannot write into the run folder {}: {}; choose another one with --run.dir=FOLDER", path_,
                         errno_text(access_error));
    lock_ = RunLock::acquire(
        path_, {.take_over = config.run.take_over, .tell = [&](const std::string& text) { logger.warn("{}", text); }});
    logger_ = logger.with_file(path_ + "/log.txt");
  });
  app.log_file = path_ + "/log.txt";
}

void RunFolder::check_owner() const {
  if (lock_) lock_->check();
}

std::string RunFolder::set_aside_after(const StartPoint& start) const {
  const std::string checkpoints = checkpoint::checkpoints_folder(path_);
  std::error_code error;
  // Another run's checkpoint: nothing that lies here is of the line.
  const bool is_of_this_run = fs::equivalent(io::parent_directory(start.checkpoint), checkpoints, error);
  const std::int64_t last_step = is_of_this_run ? start.manifest->step : -1;
  const std::vector<checkpoint::Found> all = checkpoint::list_checkpoints(checkpoints);
  if (all.empty() || all.back().step <= last_step) return "";
  std::string folder = checkpoint::make_set_aside_folder(path_);
  copy_later_metrics(path_ + "/metrics.jsonl", last_step, folder + "/metrics.jsonl");
  checkpoint::set_aside_after(path_, last_step, folder);
  return folder;
}

}  // namespace mica::train
