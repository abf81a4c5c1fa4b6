// SPDX-License-Identifier: Apache-2.0
#include "mica/checkpoint/save.hpp"

#include <chrono>
#include <filesystem>
#include <optional>
#include <random>

#include "mica/checkpoint/folder.hpp"
#include "mica/checkpoint/manifest.hpp"
#include "mica/io/atomic_file.hpp"

#include "model_index.hpp"
#include "save_job.hpp"
#include "tokenizer_files.hpp"

namespace mica::checkpoint {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

double ms_since(Clock::time_point start) { return std::chrono::duration<double, std::milli>(Clock::now() - start).count(); }

constexpr std::string_view kAdvice = "; choose a run.dir that can be written";

/// Once everything to be saved is known.
class Saver {
 public:
  Saver(const SaveJob& job, const HostComm& comm, const SaveOptions& options)
      : comm_(comm),
        options_(options),
        job_(job),
        folder_(io::parent_directory(job.folder)),
        final_(job.folder),
        temporary_(fmt::format("{}.{}.tmp", final_, job.header.run_id)) {}

  SaveReport run() {
    const auto start = Clock::now();
    prepare();
    const std::vector<FileEntry> files = write_shards();
    report_.bytes = std::stoll(comm_.from_root(0, [&] { return std::to_string(complete(files)); }));
    report_.path = final_;
    if (comm_.rank() == 0) delete_old();
    report_.total_ms = ms_since(start);
    return report_;
  }

 private:
  void at(std::string_view point) const {
    if (options_.at_point) options_.at_point(point);
  }

  void prepare() {
    comm_.from_root(0, [&] {
      if (job_.is_in_run) {
        io::make_folder(folder_, kAdvice);
        io::fsync_directory(io::parent_directory(folder_));  // it may be new
        remove_leftovers(folder_);
      } else {
        io::check_new(final_);
      }
      io::make_folder(temporary_, kAdvice);
      publication_.emplace(final_, temporary_);
      at("folder made");
      return std::string();
    });
  }

  /// @returns on rank 0, which alone needs them, the files.
  std::vector<FileEntry> write_shards() {
    const std::vector<std::string> entries = comm_.to_first_rank([&] {
      if (!job_.writes_shard) return std::string();
      const auto start = Clock::now();
      const FileEntry entry = write_shard_file(temporary_, job_.contents, options_.at_point);
      report_.write_ms = ms_since(start);
      report_.shard_bytes = entry.bytes;
      return file_entry_text(entry);
    });
    std::vector<FileEntry> files(static_cast<std::size_t>(job_.header.shard_size));
    for (const std::string& text : entries) {
      if (text.empty()) continue;
      FileEntry entry = parse_file_entry(text);
      files.at(static_cast<std::size_t>(entry.shard_rank)) = std::move(entry);
    }
    return files;
  }

  /// Rank 0: from here on the shards are on the disk.
  /// @returns the bytes of all files.
  std::int64_t complete(const std::vector<FileEntry>& files) {
    Manifest manifest = job_.header;
    manifest.files = files;
    manifest.index = write_model_index(temporary_, manifest.run_id, manifest.step, job_.contents.units, files);
    if (job_.tokenizer) manifest.tokenizer = write_tokenizer(temporary_, *job_.tokenizer);
    at("before manifest");
    write_manifest(temporary_, manifest);
    at("before rename");
    check_files(manifest);
    publish();
    at("after rename");
    return manifest.total_bytes();
  }

  /// Catches files that someone deleted or truncated while the checkpoint was being written.
  void check_files(const Manifest& manifest) const {
    for (const FileEntry* file : manifest.all_files()) {
      std::error_code error;
      const std::uintmax_t bytes = fs::file_size(temporary_ + "/" + file->name, error);
      require<IoError>(!error && bytes == static_cast<std::uintmax_t>(file->bytes),
                       "{}/{}: {}, expected {} bytes: something else changed the folder while the checkpoint was written; "
                       "does another job use this run folder?",
                       temporary_, file->name, error ? error.message() : fmt::format("has {} bytes", bytes), file->bytes);
    }
  }

  /// Renames the folder to its name. A checkpoint of the same step makes way: it is one for list_checkpoints() under its
  /// other name, too, until the new one is there.
  void publish() {
    const std::string replaced = final_ + std::string(kReplacedSuffix);
    std::error_code error;
    const bool replaces = fs::exists(final_, error);
    if (replaces) {
      fs::remove_all(replaced, error);
      fs::rename(final_, replaced, error);
      require<IoError>(!error, "{}: the earlier checkpoint of this step cannot be moved away: {}", final_, error.message());
    }
    try {
      if (replaces) at("earlier one moved");
      publication_->publish();
    } catch (...) {
      if (replaces && !fs::exists(final_, error)) fs::rename(replaced, final_, error);
      throw;
    }
    fs::remove_all(replaced, error);
    if (error) report_.notes.push_back(fmt::format("{} could not be deleted: {}", replaced, error.message()));
  }

  void delete_old() {
    if (options_.keep <= 0) return;
    try {
      std::vector<CheckpointPath> earlier = list_checkpoints(folder_);
      std::erase_if(earlier, [&](const CheckpointPath& found) { return found.step >= job_.header.step; });
      const auto kept = static_cast<std::size_t>(options_.keep) - 1;
      for (std::size_t i = 0; i + kept < earlier.size(); ++i) remove_checkpoint(earlier[i].path);
    } catch (const Error& e) {
      report_.notes.push_back(e.what());
    }
  }

  const HostComm& comm_;
  const SaveOptions& options_;
  const SaveJob& job_;
  std::string folder_, final_, temporary_;
  /// Rank 0's. Whoever fails, all ranks have left the folder when it is deleted: the error comes through a collective.
  std::optional<io::Publication> publication_;
  SaveReport report_;
};

}  // namespace

SaveReport run_save_job(const SaveJob& job, const HostComm& comm, const SaveOptions& options) { return Saver(job, comm, options).run(); }

SaveReport save(const std::string& run_folder, const SaveState& state, const HostComm& comm, const SaveOptions& options) {
  return run_save_job(make_save_job(run_folder, state, comm), comm, options);
}

std::string make_run_id() { return fmt::format("{:08x}", std::random_device()()); }

}  // namespace mica::checkpoint
