// SPDX-License-Identifier: Apache-2.0
#include "mica/checkpoint/save.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <future>
#include <optional>
#include <random>
#include <thread>

#include "mica/checkpoint/folder.hpp"
#include "mica/checkpoint/manifest.hpp"
#include "mica/io/atomic_file.hpp"
#include "mica/io/raw_file.hpp"

#include "complete_checkpoint.hpp"
#include "model_index.hpp"
#include "save_job.hpp"

namespace mica::checkpoint {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

double ms_since(Clock::time_point start) { return std::chrono::duration<double, std::milli>(Clock::now() - start).count(); }

constexpr std::string_view kAdvice = "; choose a run.dir that is writable";

/// Writes a SaveJob.
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
    const std::vector<std::string> files = write_files();
    report_.bytes = std::stoll(comm_.from_root(0, [&] {
      return std::to_string(complete_checkpoint(job_, files, index_.get(), options_.keep, *publication_, options_.at_point, report_.notes));
    }));
    report_.path = final_;
    report_.step = job_.header.step;
    if (comm_.rank() == 0) delete_old();
    report_.total_ms = ms_since(start);
    return report_;
  }

 private:
  void at(std::string_view point) const {
    if (options_.at_point) options_.at_point(point);
  }

  void prepare() {
    const std::vector<std::string> shard_bytes =
        comm_.to_first_rank([&] { return std::to_string(job_.writes_shard ? job_.contents.data_bytes() : 0); });
    comm_.from_root(0, [&] {
      if (job_.is_in_run) {
        io::make_folder(folder_, kAdvice);
        io::fsync_directory(io::parent_directory(folder_));  // it may be new
        report_.notes = remove_leftovers(folder_);
      } else {
        io::check_new(final_);
      }
      check_space(shard_bytes);
      require<IoError>(io::make_folder(temporary_, kAdvice),
                       "{}: an earlier attempt left this folder, and it cannot be deleted: delete it by hand", temporary_);
      publication_.emplace(final_, temporary_);
      at("folder made");
      return std::string();
    });
  }

  /// Fails early if the disk is too small. Counts tensor data only: everything else is small.
  void check_space(const std::vector<std::string>& shard_bytes) const {
    std::int64_t needed = 0;
    for (const std::string& bytes : shard_bytes) needed += std::stoll(bytes);
    const std::optional<std::int64_t> free = io::free_bytes(folder_);
    require<IoError>(!free || *free >= needed, "{}: no room for a checkpoint of {} bytes: {}{}", temporary_, needed, errno_text(ENOSPC),
                     io::full_disk_text(temporary_, ENOSPC));
  }

  /// Rank 0 writes model.h5 while all write shard files: of a large model on many ranks that takes it as long.
  /// @returns the shard files' entries as texts, on rank 0 only.
  std::vector<std::string> write_files() {
    const std::vector<std::string> entries = comm_.to_first_rank([&] {
      if (comm_.rank() == 0) index_ = std::async(std::launch::async, [this] { return write_model_index(temporary_, job_.contents); });
      if (!job_.writes_shard) return std::string();
      const auto start = Clock::now();
      const FileEntry entry = write_shard_file(temporary_, job_.contents, options_.at_point);
      report_.write_ms = ms_since(start);
      report_.shard_bytes = entry.bytes;
      return fmt::format("{} {}", entry.shard_rank, file_entry_text(entry));
    });
    std::vector<std::string> files(static_cast<std::size_t>(job_.header.shard_size));
    for (const std::string& entry : entries) {
      if (entry.empty()) continue;
      std::size_t space = 0;
      const int shard_rank = std::stoi(entry, &space);
      files.at(static_cast<std::size_t>(shard_rank)) = entry.substr(space + 1);
    }
    return files;
  }

  void delete_old() {
    if (options_.keep.newest == 0) return;
    try {
      const bool reads_manifests = options_.keep.best > 0 || job_.header.diverged || job_.header.optimizer.empty();
      const std::vector<Keepable> checkpoints = list_keepable(folder_, job_.header.step, reads_manifests);
      const std::vector<std::vector<std::string>> reasons = reasons_to_keep(checkpoints, options_.keep);
      for (std::size_t i = 0; i < checkpoints.size(); ++i) {
        if (reasons[i].empty()) delete_one(checkpoints[i].path);
      }
    } catch (const Error& e) {
      report_.notes.push_back(e.what());
    }
  }

  void delete_one(const std::string& checkpoint) {
    try {
      remove_checkpoint(checkpoint);
    } catch (const IoError& e) {
      report_.notes.push_back(e.what());
    }
  }

  const HostComm& comm_;
  const SaveOptions& options_;
  const SaveJob& job_;
  std::string folder_, final_, temporary_;
  /// On rank 0. It deletes the folder after a failure, when no rank uses it any more: errors are thrown after a collective.
  std::optional<io::Publication> publication_;
  std::future<FileEntry> index_;  // on rank 0: of model.h5. After publication_, so that nothing is written into a folder being deleted
  SaveReport report_;
};

/// Between two attempts. @returns whether there is another one, on all ranks alike. @collective
bool try_again_after(std::chrono::milliseconds pause, const HostComm& comm, const Retries& retries) {
  constexpr std::chrono::milliseconds kSlice{100};
  for (std::chrono::milliseconds left = pause; left.count() > 0; left -= kSlice) {
    std::this_thread::sleep_for(std::min(left, kSlice));
    const bool is_over = retries.are_over && retries.are_over();
    const std::vector<std::string> all = comm.gather_strings(is_over ? "over" : "");
    if (!std::ranges::all_of(all, &std::string::empty)) return false;
  }
  return true;
}

/// Called in a catch block. Returns when the save is to be tried again.
template <class SaveError>
void pause_or_rethrow(const SaveError& error, std::size_t attempt, const HostComm& comm, const Retries& retries) {
  const std::size_t num_attempts = retries.after.size() + 1;
  if (num_attempts == 1 || !comm.is_shared(error)) throw;  // the other ranks may not know of this rank's own error
  SaveError told(fmt::format("{} (attempt {} of {})", error.what(), attempt, num_attempts));
  told.set_num_sharers(error.num_sharers());
  if (attempt == num_attempts) throw told;
  const std::chrono::milliseconds pause = retries.after[attempt - 1];
  if (retries.tell) retries.tell(fmt::format("{}; the next one is in {:g} s", told.what(), std::chrono::duration<double>(pause).count()));
  if (!try_again_after(pause, comm, retries)) throw told;
}

}  // namespace

SaveReport run_save_job(const SaveJob& job, const HostComm& comm, const SaveOptions& options, const Retries& retries) {
  for (std::size_t attempt = 1;; ++attempt) {
    try {
      return Saver(job, comm, options).run();
    } catch (const IoError& error) {
      pause_or_rethrow(error, attempt, comm, retries);
    } catch (const ConfigError& error) {  // a folder that is read-only or forbidden, perhaps for a while
      pause_or_rethrow(error, attempt, comm, retries);
    }
  }
}

SaveReport save(const std::string& run_folder, const SaveState& state, const HostComm& comm, const SaveOptions& options,
                const Retries& retries) {
  return run_save_job(make_save_job(run_folder, state, comm), comm, options, retries);
}

std::string make_run_id() { return fmt::format("{:08x}", std::random_device()()); }

}  // namespace mica::checkpoint
