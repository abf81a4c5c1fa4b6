#include "mica/checkpoint/save.hpp"

#include <chrono>
#include <filesystem>
#include <random>

#include "mica/checkpoint/folder.hpp"
#include "mica/checkpoint/manifest.hpp"
#include "mica/core/version.hpp"
#include "mica/io/atomic_file.hpp"
#include "mica/io/raw_file.hpp"
#include "shard_file.hpp"

namespace mica::checkpoint {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

double ms_since(Clock::time_point start) { return std::chrono::duration<double, std::milli>(Clock::now() - start).count(); }

/// A folder that cannot be made is the user's to change, unless the disk is full.
void make_folder(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (!error) return;
  const std::string text = io::io_error_text(path, "creation of the folder", error.value());
  if (error == std::errc::no_space_on_device) throw IoError(text);
  throw ConfigError(text + "; choose a run.dir that can be written");
}

/// One save on one rank.
class Saver {
 public:
  Saver(const std::string& run_folder, const SaveState& state, const HostComm& comm, const SaveOptions& options)
      : comm_(comm),
        options_(options),
        state_(state),
        folder_(checkpoints_folder(run_folder)),
        final_(folder_ + "/" + step_folder_name(state.step)),
        temporary_(final_ + ".tmp") {}

  SaveReport run() {
    const auto start = Clock::now();
    agree_on_identity();
    try {
      prepare();
      const std::vector<FileEntry> files = write_shards();
      comm_.from_root(0, [&] {
        complete(files);
        return std::string();
      });
    } catch (...) {
      // Whoever failed, all ranks have left the folder: the error came through a collective.
      std::error_code ignored;
      if (comm_.rank() == 0) fs::remove_all(temporary_, ignored);
      throw;
    }
    report_.path = final_;
    if (comm_.rank() == 0) delete_old();
    report_.total_ms = ms_since(start);
    return report_;
  }

 private:
  [[nodiscard]] const Mesh& mesh() const { return state_.root->device_mesh().mesh(); }
  [[nodiscard]] bool is_writer() const { return mesh().replica_rank() == 0; }
  void at(std::string_view point) const {
    if (options_.at_point) options_.at_point(point);
  }

  /// Ranks that disagree on the step would write into different folders.
  void agree_on_identity() {
    const std::vector<std::string> all = comm_.all_or_throw([&] {
      require(state_.root->state() == fsdp::TrainingState::idle, "a checkpoint is saved while the root is {}: save between passes",
              fsdp::training_state_name(state_.root->state()));
      require(state_.root->device_mesh().compute().device() == DeviceKind::cpu,
              "a checkpoint is saved from a device whose memory the host cannot read");
      state_.root->device_mesh().compute().synchronize();  // the optimizer's last writes
      return fmt::format("{} {}", state_.step, state_.run_id);
    });
    const std::string& first = all.front();
    const auto step_text = [](const std::string& identity) { return identity.substr(0, identity.find(' ')); };
    for (std::size_t r = 0; r < all.size(); ++r) {
      require<DesyncError>(step_text(all[r]) == step_text(first), "rank {} saves step {}, but rank 0 step {}", r,
                           step_text(all[r]), step_text(first));
    }
    state_.run_id = first.substr(first.find(' ') + 1);
    require(!state_.run_id.empty() && state_.run_id.find_first_not_of("0123456789abcdefghijklmnopqrstuvwxyz") == std::string::npos,
            "run_id is '{}', expected lower-case letters and digits", state_.run_id);
  }

  void prepare() {
    comm_.from_root(0, [&] {
      make_folder(folder_);
      io::fsync_directory(io::parent_directory(folder_));  // it may be new
      remove_leftovers(folder_);
      make_folder(temporary_);
      at("folder made");
      return std::string();
    });
  }

  std::vector<FileEntry> write_shards() {
    const std::vector<std::string> entries = comm_.all_or_throw([&] {
      if (!is_writer()) return std::string();
      const auto start = Clock::now();
      const FileEntry entry = write_shard_file(temporary_, shard_contents(state_), options_.at_point);
      report_.write_ms = ms_since(start);
      report_.shard_bytes = entry.bytes;
      return file_entry_text(entry);
    });
    std::vector<FileEntry> files(static_cast<std::size_t>(mesh().shard_size()));
    for (const std::string& text : entries) {
      if (text.empty()) continue;
      FileEntry entry = parse_file_entry(text);
      report_.bytes += entry.bytes;
      files.at(static_cast<std::size_t>(entry.shard_rank)) = std::move(entry);
    }
    return files;
  }

  [[nodiscard]] Manifest manifest(const std::vector<FileEntry>& files) const {
    const fsdp::Root& root = *state_.root;
    Manifest m;
    m.mica_version = kVersion;
    m.run_id = state_.run_id;
    m.step = state_.step;
    m.tokens = state_.tokens;
    m.seed = state_.seed;
    m.world_size = mesh().world_size();
    m.shard_size = mesh().shard_size();
    m.replicas = mesh().replicas();
    m.strategy = fsdp::strategy_name(root.options().strategy);
    m.kernels = root.device_mesh().kernels().description();
    m.omp_threads = state_.omp_threads;
    if (state_.optimizer != nullptr) {
      m.optimizer = state_.optimizer->name();
      m.optimizer_steps = state_.optimizer->num_steps();
      m.state_kinds = state_.optimizer->state_kinds();
      m.parameter_steps = state_.optimizer->parameter_steps();
    }
    m.scalars = state_.scalars;
    m.model = state_.model;
    m.config = state_.config;
    m.units = unit_entries(root);
    m.files = files;
    return m;
  }

  /// Rank 0: from here on the shards are on the disk.
  void complete(const std::vector<FileEntry>& files) {
    at("before manifest");
    const std::string path = temporary_ + "/" + std::string(kManifestName);
    const std::string text = manifest_text(manifest(files));
    (void)parse_manifest(text, path);  // what cannot be read must not be published
    io::write_file_atomically(path, text);
    at("before rename");
    publish();
    at("after rename");
  }

  /// Renames the folder to its name. A checkpoint of the same step (the run went back to an older one) makes way: both
  /// names are swapped in one step, so that one of the two is there whenever the job dies.
  void publish() {
    std::error_code error;
    if (!fs::exists(final_, error)) {
      io::publish(temporary_, final_);
      return;
    }
    const std::string old = final_ + ".old.tmp";
    io::fsync_directory(temporary_);
    if (io::exchange(temporary_, final_)) {
      fs::rename(temporary_, old, error);
    } else {
      fs::rename(final_, old, error);
      require<IoError>(!error, "{}: the earlier checkpoint of this step cannot be moved away: {}", final_, error.message());
      try {
        io::publish(temporary_, final_);
      } catch (...) {
        fs::rename(old, final_, error);
        throw;
      }
    }
    fs::remove_all(old, error);
    if (error) report_.notes.push_back(fmt::format("{} could not be deleted: {}", old, error.message()));
  }

  void delete_old() {
    if (options_.keep <= 0) return;
    try {
      std::vector<Found> earlier = list_checkpoints(folder_);
      std::erase_if(earlier, [&](const Found& found) { return found.step >= state_.step; });
      const auto kept = static_cast<std::size_t>(options_.keep) - 1;
      for (std::size_t i = 0; i + kept < earlier.size(); ++i) remove_checkpoint(earlier[i].path);
    } catch (const Error& e) {
      report_.notes.push_back(e.what());
    }
  }

  const HostComm& comm_;
  const SaveOptions& options_;
  SaveState state_;
  std::string folder_, final_, temporary_;
  SaveReport report_;
};

}  // namespace

SaveReport save(const std::string& run_folder, const SaveState& state, const HostComm& comm, const SaveOptions& options) {
  return Saver(run_folder, state, comm, options).run();
}

std::string make_run_id() { return fmt::format("{:08x}", std::random_device()()); }

}  // namespace mica::checkpoint
